"""The endpoint over real sockets: scraped under load, asked for nonsense, left by slow clients."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.runtime.monitoring import exporter
from modelreg.runtime.monitoring.devices import DeviceReader
from modelreg.runtime.monitoring.exporter import DOCUMENT_PATH, METRICS_PATH, Exporter, ExporterError, routes
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg_testing.monitoring import LIMITS, Nvml, samples_of, served_adder, value_of

X: dict[str, NDArray[Any]] = {"x": np.zeros((2, 3), np.float32)}


@pytest.fixture
def monitor(in_memory: Path) -> Iterator[Monitor]:
    with (
        served_adder(in_memory) as (model, _),
        Monitor({"lenet": model}, limits=LIMITS, devices=DeviceReader(library=Nvml([]))) as made,
    ):
        yield made


@pytest.fixture
def served(monitor: Monitor) -> Iterator[Exporter]:
    with monitor.serve_http(0) as made:
        yield made


def get(url: str, *, method: str = "GET") -> tuple[bytes, str]:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as answer:
        return answer.read(), answer.headers["content-type"]


def test_prometheus_reads_what_is_served_under_load_and_counters_only_grow(monitor: Monitor, served: Exporter) -> None:
    over = threading.Event()
    model = monitor.wrap("lenet")

    def ask() -> None:
        while not over.is_set():
            model.infer(X)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = []
    try:
        for _ in range(10):
            body, kind = get(served.url + METRICS_PATH)
            assert kind == "text/plain; version=0.0.4; charset=utf-8"
            buckets = value_of(body, "modelreg_request_duration_seconds_bucket", le="+Inf")
            assert buckets == value_of(body, "modelreg_request_duration_seconds_count")
            seen.append(value_of(body, "nv_inference_request_success"))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    body, _ = get(served.url + METRICS_PATH)
    assert value_of(body, "nv_inference_request_success") == monitor.requests.totals("lenet").answered


def test_the_document_is_json(monitor: Monitor, served: Exporter) -> None:
    body, kind = get(served.url + DOCUMENT_PATH + "?x=1")
    assert kind == "application/json"
    assert json.loads(body)["models"]["lenet"]["health"] == "HEALTHY"
    assert get(served.url + METRICS_PATH, method="HEAD")[0] == b""


def test_other_paths_and_methods_are_refused(served: Exporter) -> None:
    for method, path, code in (("GET", "/", 404), ("POST", METRICS_PATH, 501)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(served.url + path, method=method)
        assert caught.value.code == code
        caught.value.close()


def test_a_port_that_is_taken_is_one_line(monitor: Monitor, served: Exporter) -> None:
    with pytest.raises(ExporterError, match=rf"^metrics cannot be served on 127.0.0.1:{served.port}: Address already"):
        monitor.serve_http(served.port)
    with pytest.raises(ExporterError, match="cannot be served"):
        monitor.serve_http(70_000)


def test_silent_clients_hold_neither_the_others_nor_the_end(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter._Handler, "timeout", 0.3)
    with monitor.serve_http(0) as made:
        silent = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(15)]
        assert samples_of(get(made.url + METRICS_PATH)[0])
        assert silent[0].recv(1) == b""  # left after a while
        for each in silent:
            each.close()


def test_more_clients_than_places_are_turned_away_and_not_kept(monitor: Monitor) -> None:
    with monitor.serve_http(0) as made:
        clients = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(20)]
        clients[-1].settimeout(20)
        assert clients[-1].recv(1) == b""
        for each in clients:
            each.close()


def test_starlette_serves_the_same_through_its_routes(monitor: Monitor) -> None:
    import uvicorn
    from starlette.applications import Starlette

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes(monitor)), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        monitor.wrap("lenet").infer(X)
        body, kind = get(url + METRICS_PATH)
        document, _ = get(url + DOCUMENT_PATH)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert value_of(body, "nv_inference_request_success") == 1
    assert json.loads(document)["health"]["state"] == "HEALTHY"


def test_watching_imports_no_extra_before_it_is_used() -> None:
    script = (
        "import sys\n"
        "from modelreg.runtime.monitoring.monitor import Monitor\n"
        "from modelreg.runtime.monitoring import exporter, remote\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    extras = {"starlette", "uvicorn", "prometheus_client", "psutil", "pynvml", "numpy", "onnxruntime", "onnx"}
    assert extras & set(done.stdout.split()) == set()
