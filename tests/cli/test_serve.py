"""`modelreg serve` as a process: Triton's own client, promotes and signals under load, and what it refuses to begin."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.ort import open_session
from modelreg_testing.cli import run_cli
from modelreg_testing.http_serving import HttpClient, ServeProcess, adder_request, binary_request, ones
from modelreg_testing.monitoring import value_of
from modelreg_testing.released_lenet import released_lenet
from modelreg_testing.serving import activate_plan, adder, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    made = LocalStorage.create(in_memory / "store")
    activate_plan(made, adder(1))
    return made


def process(store: LocalStorage, *words: object) -> ServeProcess:
    """Serve the adders of a store."""
    return ServeProcess(
        "lenet@production", "--store", store.root, "--http-port", 0, "--cache", store.root.parent / "cache", *words
    )


class Load:
    """Threads that ask all the time, each on one connection; a connection that ends is made anew."""

    def __init__(self, port: int, *, number: int = 3) -> None:
        self.statuses = Counter[int]()
        self.wrong: list[tuple[int, float]] = []
        self.broken: list[str] = []
        self.generations: list[list[int]] = []
        self.over = threading.Event()
        self._port = port
        self._threads = [threading.Thread(target=self._ask, args=([],)) for _ in range(number)]

    def _ask(self, seen: list[int]) -> None:
        self.generations.append(seen)
        x = np.zeros((2, 3), np.float32)
        body, headers = binary_request("x", x)
        client = HttpClient(self._port)
        while not self.over.is_set():
            try:
                answer = client.ask("POST", "/v2/models/lenet/infer", body, **headers)
            except (OSError, HTTPException) as error:
                client.close()
                client = HttpClient(self._port)
                if isinstance(error, ConnectionRefusedError):
                    return
                self.broken.append(repr(error))
                continue
            self.statuses[answer.status] += 1
            if answer.status == 200:
                generation = answer.document["parameters"]["generation"]
                seen.append(generation)
                if answer.raw != np.full((2, 3), generation, np.float32).tobytes():
                    self.wrong.append((generation, np.frombuffer(answer.raw, np.float32)[0]))
        client.close()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.installed
def test_promotes_under_load_fail_no_request_and_a_signal_loses_none(store: LocalStorage) -> None:
    with process(store) as server, Load(server.port) as load:
        for generation in (2, 3):
            activate_plan(store, adder(generation))  # its answers are its generation
            eventually(lambda: load.generations and load.generations[0][-1:] == [generation])  # noqa: B023
        assert set(load.statuses) == {200}
        assert load.broken == []
        eventually(lambda: len(server.named("swapped")) == 2)
        assert [event["generation"] for event in server.named("swapped")] == [2, 3]
        with HttpClient(server.port) as client:
            answered = client.ask("GET", "/v2/models/stats").document
        server.signal(signal.SIGTERM)
        code = server.wait()
        assert code == 0, (server.err, server.events[-3:])
        load.over.set()
    assert load.wrong == []
    assert all(seen == sorted(seen) for seen in load.generations)  # on one connection, never back
    assert set(load.statuses) <= {200, 503}
    assert sum(stat["inference_stats"]["fail"]["count"] for stat in answered["model_stats"]) == 0
    assert [event["event"] for event in server.events[-2:]] == ["stopping", "stopped"]
    # What was sent as the last connections were closed was never read; a client sends such a request again.
    assert len(load.broken) <= 3, load.broken


def test_what_is_under_way_ends_before_the_server_does(store: LocalStorage) -> None:
    with process(store, "--access-log") as server:
        body = adder_request(rows=2)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow, HttpClient(server.port) as other:
            head = f"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            slow.sendall(head.encode() + body[:10])
            assert other.ask("GET", "/v2/health/ready").status == 200  # by now the other one is under way
            server.signal(signal.SIGTERM)
            eventually(lambda: server.named("stopping"))
            answer = other.ask("GET", "/v2/health/ready")
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            refused = other.ask("POST", "/v2/models/lenet/infer", body)
            assert (refused.status, refused.document) == (503, {"error": "this server is shutting down"})
            assert server.named("stopping")[0]["under_way"] == 1
            slow.sendall(body[10:])
            assert b" 200 OK" in slow.recv(65536)
        assert server.wait() == 0
        (request,) = server.named("request")
        assert (request["outcome"], request["rows"], request["generation"]) == ("ok", 2, 1)


def test_a_second_signal_ends_it_at_once(store: LocalStorage, tmp_path: Path) -> None:
    path = tmp_path / "s"
    words = ("lenet@production", "--store", store.root, "--cache", tmp_path / "cache", "--no-lease")
    with ServeProcess(*words, "--uds", path, "--shutdown-timeout", 50) as server:
        assert server.url == f"unix:{path}"
        assert run_cli("serve", *words, "--uds", path).err.startswith(f"modelreg: error: somebody listens on {path}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.connect(str(path))
            slow.sendall(b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            time.sleep(0.3)
            server.signal(signal.SIGINT)
            eventually(lambda: server.named("stopping"))
            server.signal(signal.SIGTERM)
            assert server.wait() == 128 + signal.SIGTERM
        assert not path.exists()


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServeProcess, Path]]:
    home = released_lenet(tmp_path_factory)
    cache = tmp_path_factory.mktemp("cache")
    words = (
        "lenet@production",
        "--home",
        home,
        "--http-port",
        0,
        "--cache",
        cache,
        "--threads",
        1,
        "--no-lease",
        "--parity-share",
        1,
    )
    with ServeProcess(*words) as server:
        yield server, cache
        assert server.stop() == 0


def test_tritons_client_works(lenet: tuple[ServeProcess, Path]) -> None:
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    server, cache = lenet
    images = np.random.default_rng(0).normal(size=(3, 1, 28, 28)).astype(np.float32)
    (plan,) = (cache / "lenet@production" / "releases").rglob("model.onnx")
    (expected,) = open_session(str(plan), threads=1).run(None, {"image": images})
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=2)
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("lenet")
        assert client.is_model_ready("lenet@production", "2")
        assert not client.is_model_ready("lenet", "1")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        assert client.get_model_metadata("lenet")["inputs"] == [
            {"name": "image", "datatype": "FP32", "shape": [-1, 1, 28, 28]}
        ]
        config = client.get_model_config("lenet")
        assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [-1, 1, 28, 28]}]
        assert client.get_model_repository_index() == [
            {"name": "lenet", "version": "2", "state": "READY", "reason": ""}
        ]
        asked = triton.InferInput("image", list(images.shape), "FP32")
        wanted: list[dict[str, Any]] = [
            {},
            {"outputs": [triton.InferRequestedOutput("logits", binary_data=True)], "request_id": "7"},
            {"outputs": [triton.InferRequestedOutput("logits", binary_data=False)], "timeout": 10_000_000},
            {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"},
            {"request_compression_algorithm": "deflate", "response_compression_algorithm": "deflate"},
        ]
        for binary in (True, False):
            asked.set_data_from_numpy(images, binary_data=binary)
            for more in wanted:
                result = client.infer("lenet", [asked], **more)
                np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)
                assert result.get_response()["parameters"]["precision"] == "int8"
                assert result.get_response().get("id") == more.get("request_id")
        several = [client.async_infer("lenet", [asked], model_version="2") for _ in range(5)]
        for each in several:
            np.testing.assert_allclose(each.get_result().as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)
        (stats,) = client.get_inference_statistics("lenet")["model_stats"]
        assert stats["inference_count"] >= 45
        refused: list[tuple[Callable[[], object], str]] = [
            (lambda: client.load_model("lenet"), "promote"),
            (lambda: client.register_system_shared_memory("r", "/r", 64), "shared memory is not supported"),
            (lambda: client.infer("other", [asked]), "there is no model 'other'"),
            (lambda: client.infer("lenet", [asked], model_version="1"), "Version 2 is served"),
        ]
        for call, said in refused:
            with pytest.raises(InferenceServerException, match=said):
                call()
    finally:
        client.close()


def test_every_dtype_and_page_of_the_server_is_json(lenet: tuple[ServeProcess, Path]) -> None:
    server, _ = lenet
    with HttpClient(server.port) as client:
        for path in ("/v2", "/v2/health/ready", "/v2/models/lenet", "/v2/models/stats", "/nothing"):
            assert client.ask("GET", path).headers["content-type"] == "application/json"
        body, headers = binary_request("image", ones(64))
        answer = client.ask("POST", "/v2/models/lenet/infer", body, **headers)
        assert answer.document["outputs"][0]["shape"] == [64, 10]
        assert answer.headers["modelreg-generation"] == "2"


def test_a_share_of_the_answers_is_compared_with_the_source(lenet: tuple[ServeProcess, Path]) -> None:
    server, _ = lenet
    images = np.random.default_rng(1).normal(size=(4, 1, 28, 28)).astype(np.float32)
    body, headers = binary_request("image", images)
    with HttpClient(server.port) as client:

        def compared() -> float:
            assert client.ask("POST", "/v2/models/lenet/infer", body, **headers).status == 200
            text = client.ask("GET", "/metrics").body
            return value_of(text, "modelreg_parity_samples_total", model="lenet")

        eventually(compared)
        text = client.ask("GET", "/metrics").body
        assert value_of(text, "modelreg_parity_cosine", precision="int8", output="logits") > 0.9


def test_without_metrics_there_is_no_address_for_them(store: LocalStorage) -> None:
    with process(store, "--no-metrics") as server, HttpClient(server.port) as client:
        assert client.ask("GET", "/metrics").status == 404
        done = run_cli("top", server.url, "--once")
        assert (done.code, "answers 404" in done.err) == (1, True)


def test_what_it_does_not_begin(store: LocalStorage, tmp_path: Path) -> None:
    def refused(*words: object) -> tuple[int, str]:
        done = run_cli("serve", "lenet@production", "--store", store.root, "--cache", tmp_path / "cache", *words)
        return done.code, done.err.splitlines()[0] if done.err else ""

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused("--http-port", port)
        assert (code, said) == (1, f"modelreg: error: port {port} of 127.0.0.1 is taken")
    assert refused("--host", "no such host", "--http-port", 0)[0] == 2
    code, said = refused("--host", "192.0.2.1", "--http-port", 0)
    assert (code, said) == (2, "modelreg: error: 192.0.2.1 is no address of this host")
    assert refused("--http-port", 70000)[0] == 2
    assert refused("--uds", tmp_path, "--http-port", 0)[0] == 2
    assert refused("--uds", tmp_path) == (1, f"modelreg: error: {tmp_path} is there and is no socket")
    assert refused("--uds", tmp_path / "none" / "s")[0] == 1
    assert refused("lenet@production")[1] == "modelreg: error: lenet@production is named twice"
    assert refused("lenet")[0] == 2
    code, said = refused("lenet@nothing", "--http-port", 0)
    assert (code, "lenet@nothing" in said) == (1, True)
    assert refused("--devices", "first", "--http-port", 0) == (2, "modelreg: error: 'first' is no device")
    assert refused("--devices", "0", "--http-port", 0)[0] == 2  # the engine is for the CPU
    assert refused("--max-delay-us", 5, "--http-port", 0)[0] == 2
    assert refused("--max-batch", 4, "--max-queue", 0, "--http-port", 0)[0] == 2
    assert refused("--parity-share", 0.1, "--no-metrics")[0] == 2
    assert refused("--parity-share", 1.5)[0] == 2
    assert run_cli("serve", "lenet@production", "--endpoint-url", "http://x").code == 2
    assert run_cli("serve").code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen on every port")
def test_a_privileged_port_is_refused(store: LocalStorage) -> None:
    done = run_cli("serve", "lenet@production", "--store", store.root, "--http-port", 1)
    assert (done.code, "needs a privilege" in done.err) == (1, True)


def test_settings_of_the_registry_and_variables_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELREG_SERVE_HOST", "192.0.2.1")
    monkeypatch.setenv("MODELREG_STORE_URL", "/nowhere")
    done = run_cli("serve", "lenet@production", "--set", "serve.http_port=0", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["message"] == "192.0.2.1 is no address of this host"
