"""`modelreg serve` with everything on: instances, batches, metrics, `top`, Triton's clients, a promote, and the end."""

from __future__ import annotations

import signal
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.cli import run_cli
from modelreg_testing.http_serving import ServeProcess
from modelreg_testing.monitoring import samples_of, value_of
from modelreg_testing.serving import activate_plan, adder, eventually

pytestmark = pytest.mark.slow

CLIENTS = 8


class TritonClients:
    """Threads with Triton's own client, each asking for as many rows as its number; an answer is its generation."""

    def __init__(self, port: int) -> None:
        self.answered: Counter[int] = Counter()
        self.rows: Counter[int] = Counter()
        self.wrong: list[tuple[int, Any]] = []
        self.failed: list[str] = []
        self.broken = 0
        self._port = port
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(1, CLIENTS + 1)]

    def _ask(self, rows: int) -> None:
        import tritonclient.http as triton
        from tritonclient.utils import InferenceServerException

        asked = triton.InferInput("x", [rows, 3], "FP32")
        asked.set_data_from_numpy(np.zeros((rows, 3), np.float32))
        with triton.InferenceServerClient(f"127.0.0.1:{self._port}") as client:
            while not self._over.is_set():
                try:
                    answer = client.infer("lenet", [asked])
                except InferenceServerException as error:
                    if error.status() != "503":
                        self.failed.append(str(error))
                    return
                except OSError:  # the server has ended
                    self.broken += 1
                    return
                self._note(rows, answer.get_response()["parameters"]["generation"], answer.as_numpy("y"))

    def _note(self, rows: int, generation: int, found: Any) -> None:
        with self._lock:
            self.answered[generation] += 1
            self.rows[generation] += rows
            if found.tolist() != [[generation] * 3] * rows:
                self.wrong.append((generation, found))

    @property
    def total(self) -> int:
        """Return how many answers came."""
        return sum(self.answered.values())

    def __enter__(self) -> TritonClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def read_metrics(server: ServeProcess) -> bytes:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        text: bytes = answer.read()
    return text


def test_instances_batches_metrics_and_top_over_a_promote_and_the_end(in_memory: Path) -> None:
    store = LocalStorage.create(in_memory / "store")
    activate_plan(store, adder(1))
    words = ("lenet@production", "--store", store.root, "--http-port", 0, "--cache", in_memory / "cache")
    batched = ("--instances", 2, "--max-batch", 16, "--max-delay-us", 2000, "--threads", 1, "--max-queue", 64)
    with ServeProcess(*words, *batched, "--access-log") as server:
        with TritonClients(server.port) as clients:
            eventually(lambda: clients.answered[1] > 50)
            activate_plan(store, adder(2))
            eventually(lambda: clients.answered[2] > 50)
        assert (clients.failed, clients.wrong, clients.broken) == ([], [], 0)
        assert set(clients.answered) == {1, 2}
        require_metrics(read_metrics(server), clients)
        require_top(server, clients)
        with TritonClients(server.port) as last:
            eventually(lambda: last.total > 50)
            server.signal(signal.SIGTERM)
            code = server.wait()
            assert code == 0, (server.err, server.events[-3:])
        assert (last.failed, last.wrong) == ([], [])
        outcomes = Counter(event["outcome"] for event in server.named("request"))
        # Each answer that was sent was heard; a client that was refused, or cut off before it was read, asks elsewhere.
        assert outcomes["ok"] == clients.total + last.total
        assert set(outcomes) <= {"ok", "refused"}
        assert [event["event"] for event in server.events[-1:]] == ["stopped"]
        assert server.named("alarm") == []


def require_metrics(text: bytes, clients: TritonClients) -> None:
    """Check that the counts are those of the clients, and that batches were fewer."""
    for generation, number in clients.answered.items():
        labels = {"model": "lenet", "generation": str(generation)}
        assert value_of(text, "nv_inference_request_success", **labels) == number
        assert value_of(text, "nv_inference_count", **labels) == clients.rows[generation]
    executions = sum(value for _, value in samples_of(text)["nv_inference_exec_count"])
    assert 0 < executions < clients.total
    assert sum(value for _, value in samples_of(text)["nv_inference_request_failure"]) == 0
    assert value_of(text, "nv_inference_pending_request_count", model="lenet") == 0
    assert value_of(text, "modelreg_generation", model="lenet") == 2


def require_top(server: ServeProcess, clients: TritonClients) -> None:
    """Check that `top` says the same, as JSON and as a table."""
    time.sleep(1.1)  # one look of the monitor, for its view of the state
    done = run_cli("top", server.url, "--once", "--json")
    assert done.code == 0, done.err
    model = done.document["processes"][0]["document"]["models"]["lenet"]
    assert (model["requests"]["total"], model["requests"]["answered"]) == (clients.total, clients.total)
    assert model["requests"]["faults"] == 0
    assert model["requests"]["batch"] > sum(clients.rows.values()) / clients.total  # rows of a batch, of a request
    assert model["state"]["served"]["generation"] == 2
    assert [each["device"] for each in model["state"]["instances"]] == ["cpu", "cpu"]
    assert model["swaps"]["overlap"] == 1
    table = run_cli("top", server.url).out.splitlines()
    assert table[0].split()[-2:] == ["INST", "HEALTH"]
    assert table[1].split()[-2] == "2"
