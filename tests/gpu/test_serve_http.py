"""`modelreg serve` on this GPU: instances, batches and CUDA graphs over HTTP, and what its metrics say of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from modelreg_testing.cli import run_cli
from modelreg_testing.gpu_lab import Lab, require_time
from modelreg_testing.gpu_serving import images_like, note, served
from modelreg_testing.http_serving import HttpClient, ServeProcess, binary_request
from modelreg_testing.monitoring import samples_of, value_of
from modelreg_testing.serving_load import first_output

pytestmark = pytest.mark.gpu

CLIENTS, EACH = 8, 50


class Clients:
    """Threads that ask for the same images again and again, and keep the largest error against what is wanted."""

    def __init__(self, port: int, image: Any, wanted: Any) -> None:
        self.statuses: list[int] = []
        self.errors: list[float] = []
        self._port, self._wanted = port, wanted
        self._body, self._headers = binary_request("image", image)

    def _ask(self) -> None:
        with HttpClient(self._port) as client:
            for _ in range(EACH):
                answer = client.ask("POST", "/v2/models/lenet/infer", self._body, **self._headers)
                self.statuses.append(answer.status)
                found = np.frombuffer(answer.raw, np.float32).reshape(self._wanted.shape)
                self.errors.append(float(np.abs(found - self._wanted).max()))

    def run(self) -> float:
        """Ask with all, and return the seconds that it took."""
        threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        began_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began_s


def test_requests_over_http_are_batched_on_every_gpu_and_the_metrics_tell_of_it(lab: Lab) -> None:
    require_time(60)
    for library in ("starlette", "uvicorn"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    image = images_like(lab, "lenet", 1, number=1)[0]["image"]
    with served(lab, "lenet") as model:
        wanted = np.asarray(first_output(model.infer({"image": image})), np.float32)
    words = () if lab.setting.is_rehearsal else ("--devices", "all", "--cuda-graphs")
    batched = ("--instances", 2, "--max-batch", 8, "--max-delay-us", 1000, "--no-lease")
    cache = lab.folder / "cache" / "serve"
    with ServeProcess(
        "lenet@production", "--home", lab.home, "--http-port", 0, "--cache", cache, *batched, *words
    ) as server:
        clients = Clients(server.port, image, wanted)
        seconds = clients.run()
        with HttpClient(server.port) as client:
            text = client.ask("GET", "/metrics").body
        shown = run_cli("top", server.url, "--once", "--json").document
        assert server.stop() == 0
    assert set(clients.statuses) == {200}
    assert max(clients.errors) <= 0.02 * float(np.abs(wanted).max())  # a batch of another size may round otherwise
    executions = value_of(text, "nv_inference_exec_count", model="lenet")
    assert value_of(text, "nv_inference_request_success", model="lenet") == CLIENTS * EACH
    assert executions < CLIENTS * EACH
    document = shown["processes"][0]["document"]
    instances = [each for each in document["models"]["lenet"]["state"]["instances"] if not each["reason"]]
    gpus = samples_of(text).get("nv_gpu_memory_used_bytes", [])
    note(
        lab,
        "over HTTP",
        requests_s=CLIENTS * EACH / seconds,
        executions=executions,
        instances=len(instances),
        gpus=len(gpus),
        health=document["health"]["state"],
    )
    assert len(instances) == 2 * len({each["device"] for each in instances})
    if not lab.setting.is_rehearsal:
        assert all(value > 0 for _, value in gpus)
        assert len(gpus) == 0 or len(gpus) == len({each["device"] for each in instances})
