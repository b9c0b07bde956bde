"""A real model behind a real socket: every address, every refusal, and clients that do not behave."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.serve.bodies import Body
from modelreg.runtime.serve.inferring import Visit
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.models import name_models, serve_models
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.http_serving import Held, HttpClient, Server, adder_request, binary_request, serving
from modelreg_testing.monitoring import value_of
from modelreg_testing.serving import SIGNATURE, activate_plan, adder, children

X = np.zeros((2, 3), np.float32)
Test = Callable[[LocalStorage], Coroutine[Any, Any, None]]


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    made = LocalStorage.create(in_memory / "store")
    activate_plan(made, adder(1))
    return made


def in_a_loop(test: Test) -> Callable[[LocalStorage], None]:
    @wraps(test)
    def run(store: LocalStorage) -> None:
        asyncio.run(test(store))

    return run


def active(store: LocalStorage, **changes: Any) -> AsyncActiveModel:
    arguments: dict[str, Any] = {"interval_s": 0.05, "options": ServingOptions(trial=False), "lease": False} | changes
    return AsyncActiveModel("lenet@production", store=str(store.root), cache=store.root.parent / "cache", **arguments)


@asynccontextmanager
async def served(store: LocalStorage, **limits: Any) -> AsyncIterator[Server]:
    async with active(store) as model, serving({"lenet@production": model}, **limits) as server:
        yield server


@asynccontextmanager
async def held(store: LocalStorage, **limits: Any) -> AsyncIterator[tuple[Server, Held]]:
    async with active(store) as model:
        holding = Held(model)
        async with serving({"lenet@production": holding}, **limits) as server:
            try:
                yield server, holding
            finally:
                holding.go.set()


async def until(is_so: Callable[[], Any]) -> None:
    async def look() -> None:
        while not is_so():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), 60)


@in_a_loop
async def test_the_addresses_of_the_protocol(store: LocalStorage) -> None:
    async with served(store) as server:
        expected: list[tuple[str, int, dict[str, Any]]] = [
            ("/v2", 200, {"name": "modelreg", "version": "1.2.3"}),
            ("/v2/health/live", 200, {"live": True}),
            ("/v2/health/ready", 200, {"ready": True}),
            ("/v2/models/lenet", 200, {"name": "lenet", "versions": ["1"]}),
            ("/v2/models/lenet@production", 200, {"name": "lenet"}),
            ("/v2/models/lenet%40production", 200, {"name": "lenet"}),
            ("/v2/models/lenet/versions/1", 200, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}),
            ("/v2/models/lenet/ready", 200, {"ready": True}),
            ("/v2/models/lenet/versions/1/ready", 200, {"version": "1"}),
            ("/v2/models/lenet/config", 200, {"max_batch_size": 0, "backend": "onnxruntime"}),
            ("/v2/models/stats", 200, {"model_stats": []}),
            ("/v2/models/lenet/versions/9", 404, {"error": "lenet has no version '9' here. Version 1 is served."}),
            ("/v2/models/lenet/versions/9/ready", 404, {}),
            ("/v2/models/other", 404, {"error": "there is no model 'other'; this server has lenet"}),
            ("/v2/models/lenet@staging", 404, {}),
            ("/v2/models/lenet/infer", 405, {"error": "Method Not Allowed"}),
            ("/v3", 404, {"error": "Not Found"}),
            ("/v2/", 404, {}),
        ]
        for path, status, part in expected:
            answer = await server.ask("GET", path)
            assert answer.status == status, path
            assert part.items() <= answer.document.items(), path
        for path, status in [
            ("/v2/repository/index", 200),
            ("/v2/repository/models/lenet/load", 403),
            ("/v2/repository/models/lenet/unload", 403),
            ("/v2/systemsharedmemory/region/r/register", 400),
            ("/v2/cudasharedmemory/unregister", 400),
            ("/v2/models/other/infer", 404),
            ("/v2/models/lenet/versions/9/infer", 404),
        ]:
            assert (await server.ask("POST", path, b"{}")).status == status, path


@in_a_loop
async def test_an_answer_says_which_engine_gave_it_and_is_counted(store: LocalStorage) -> None:
    async with served(store) as server:
        answer = await server.infer(adder_request(id="7"))
        assert answer.status == 200
        assert answer.document["id"] == "7"
        assert answer.document["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [1.0] * 6}]
        engine = server.models[0].served
        assert engine is not None
        assert answer.document["parameters"]["digest"] == answer.headers["modelreg-digest"] == engine.digest
        assert answer.headers["modelreg-generation"] == "1"
        body, headers = binary_request("x", X)
        binary = await server.infer(body, **headers)
        assert binary.raw == np.ones((2, 3), np.float32).tobytes()
        assert (await server.infer(b"nonsense")).status == 400
        (stats,) = (await server.ask("GET", "/v2/models/lenet/stats")).document["model_stats"]
        assert (stats["inference_count"], stats["execution_count"], stats["version"]) == (4, 2, "1")
        assert stats["inference_stats"]["success"]["count"] == 2
        assert stats["inference_stats"]["fail"]["count"] == 1
        assert stats["batch_stats"][0]["batch_size"] == 2
        assert (await server.ask("GET", "/v2/models/lenet/versions/2/stats")).document == {"model_stats": []}
        first, second, third = server.records.seen
        assert (first.model, first.rows, first.bytes_in, first.served) == (
            "lenet",
            2,
            len(adder_request(id="7")),
            engine,
        )
        assert 0 < first.compute_s <= first.total_s
        assert second.bytes_out == len(binary.body)
        assert (str(third.outcome), third.served, third.rows) == ("invalid", None, 0)


@in_a_loop
async def test_bodies_and_answers_may_be_compressed(store: LocalStorage) -> None:
    async with served(store) as server:
        body = adder_request(rows=500)
        ways: list[tuple[str, bytes, Callable[[bytes], bytes]]] = [
            ("gzip", gzip.compress(body), gzip.decompress),
            ("deflate", zlib.compress(body), zlib.decompress),
        ]
        for encoding, packed, unpack in ways:
            answer = await server.infer(packed, Content_Encoding=encoding, Accept_Encoding=encoding)
            assert answer.headers["content-encoding"] == encoding
            assert json.loads(unpack(answer.body))["outputs"][0]["data"] == [1.0] * 1500
        assert (await server.infer(body, Content_Encoding="br")).status == 415
        assert (await server.infer(body, Content_Encoding="gzip")).status == 400


@in_a_loop
async def test_a_body_beyond_the_limit_is_not_read_and_a_bomb_not_unpacked(store: LocalStorage) -> None:
    async with served(store, max_body_bytes=100_000) as server:
        assert (await server.infer(bytes(100_001))).status == 413
        bomb = gzip.compress(bytes(50_000_000))
        assert len(bomb) < 100_000
        answer = await server.infer(bomb, Content_Encoding="gzip")
        assert (answer.status, answer.document) == (
            413,
            {"error": "the body is larger than 100000 bytes when it is unpacked"},
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")  # 160 KiB, and no end in sight
        assert b" 413 " in await reader.readline()
        writer.close()
        for number in range(20):  # the whole body is sent before the answer is read
            answer = await server.infer(bytes(8_000_000 + number))
            assert (answer.status, answer.headers["connection"]) == (413, "close")
        for name, value in [("Content-Length", "x"), ("Inference-Header-Content-Length", "-3")]:
            answer = await server.ask("POST", "/v2/models/lenet/infer", b"{}", **{name: value})
            assert answer.status == 400
        assert [record.bytes_in <= 170_000 for record in server.records.seen] == [True] * 24


@in_a_loop
async def test_the_queue_has_an_end_a_deadline_counts_and_who_leaves_is_forgotten(store: LocalStorage) -> None:
    async with held(store, concurrency=1, max_queue=2) as (server, holding):
        first = asyncio.ensure_future(server.infer())
        await until(lambda: holding.began == 1)
        short = asyncio.ensure_future(server.infer(adder_request(parameters={"timeout": 50_000})))
        admission = server.models[0].admission
        await until(lambda: admission.waiting == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = adder_request()
        writer.write(
            b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: admission.waiting == 2 or short.done())
        expired = await short
        assert (expired.status, expired.document["error"]) == (504, "the deadline passed while the request waited")
        await until(lambda: admission.waiting == 1)
        second = asyncio.ensure_future(server.infer())
        await until(lambda: admission.waiting == 2)
        refused = await server.infer()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.document == {"error": "2 requests wait already"}
        writer.close()  # gone while it waits
        await until(lambda: admission.waiting == 1)
        holding.go.set()
        assert [(await each).status for each in (first, second)] == [200, 200]
        assert holding.began == 2  # neither what expired nor what was left came to the engine
        assert sorted(server.records.outcomes) == ["canceled", "expired", "ok", "ok", "refused"]
        del reader


@in_a_loop
async def test_a_deadline_that_passes_on_the_engine_keeps_its_place_until_the_engine_is_free(
    store: LocalStorage,
) -> None:
    async with held(store, concurrency=1, max_queue=0) as (server, holding):
        expired = await server.infer(adder_request(parameters={"timeout": 20_000}))
        assert (expired.status, holding.began) == (504, 1)
        assert (await server.infer()).status == 503
        holding.go.set()
        await until(lambda: server.models[0].admission._free == 1)
        assert (await server.infer()).status == 200


@in_a_loop
async def test_slow_clients_are_cut_and_cost_no_place(store: LocalStorage) -> None:
    async with served(store, concurrency=1, max_queue=0, read_timeout_s=0.3) as server:
        slow_body, slow_writer = await asyncio.open_connection("127.0.0.1", server.port)
        slow_writer.write(b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        slow_head, head_writer = await asyncio.open_connection("127.0.0.1", server.port)
        head_writer.write(b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost")
        assert (await server.infer()).status == 200  # meanwhile
        assert b" 408 " in await slow_body.readline()
        assert await slow_head.read() == b""
        slow_writer.close()
        head_writer.close()


@in_a_loop
async def test_connections_that_ask_nothing_make_room_for_those_that_do(store: LocalStorage) -> None:
    async with served(store, max_connections=10) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in idle]
        await until(lambda: sum(end.done() for end in ends) >= 3)
        assert (await server.infer()).status == 200
        for _, writer in idle:
            writer.close()
        assert set(await asyncio.gather(*ends)) == {b""}


@in_a_loop
async def test_as_many_connections_as_may_be_are_served(store: LocalStorage) -> None:
    async with served(store, max_connections=1) as server:
        with HttpClient(server.port) as first:
            ask = partial(first.ask, "GET", "/v2/health/live")
            assert (await asyncio.to_thread(ask)).status == 200
            assert (await server.ask("GET", "/v2/health/live")).status == 503
            assert (await asyncio.to_thread(ask)).status == 200


@in_a_loop
async def test_an_answer_that_nobody_reads_is_cut_and_a_busy_connection_is_not(store: LocalStorage) -> None:
    async with served(store, read_timeout_s=1.0) as server:
        over = threading.Event()

        def ask_until_it_is_over() -> set[int]:
            found = set()
            with HttpClient(server.port) as client:
                while not over.is_set():
                    found.add(client.ask("POST", "/v2/models/lenet/infer", adder_request()).status)
                    time.sleep(0.01)
            return found

        busy = asyncio.get_running_loop().run_in_executor(None, ask_until_it_is_over)
        await until(lambda: server.records.seen)
        deaf, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        deaf._transport.pause_reading()  # type: ignore[attr-defined] # the client's own buffer must not help
        body, headers = binary_request("x", np.zeros((1_000_000, 3), np.float32))
        length = headers["Inference-Header-Content-Length"]
        head = f"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {length}\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: any(record.rows == 1_000_000 for record in server.records.seen))
        await until(lambda: len(server.connections) == 1)  # the deaf one is gone, the busy one goes on
        over.set()
        assert await busy == {200}
        writer.transport.abort()


@in_a_loop
async def test_bodies_share_memory_and_give_it_back(store: LocalStorage) -> None:
    async with held(store, memory_bytes=2 * len(adder_request()), concurrency=9) as (server, holding):
        waiting = [asyncio.ensure_future(server.infer()) for _ in range(2)]
        await until(lambda: holding.began == 2)
        answer = await server.infer()
        assert (answer.status, answer.document["error"].split(" of ")[0]) == (503, "the bodies")
        holding.go.set()
        assert [(await each).status for each in waiting] == [200, 200]
        assert (await server.infer()).status == 200


@in_a_loop
async def test_a_closed_gate_answers_503_and_ends_connections(store: LocalStorage) -> None:
    async with served(store) as server:
        server.gate.is_ready = False
        assert (await server.ask("GET", "/v2/health/ready")).status == 503
        assert (await server.ask("GET", "/v2/health/live")).status == 200
        answer = await server.infer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        server.gate.is_open = False
        answer = await server.infer()
        assert (answer.status, answer.document) == (503, {"error": "this server is shutting down"})
        assert answer.headers["connection"] == "close"


@in_a_loop
async def test_what_the_engine_refuses_is_the_clients_fault(store: LocalStorage) -> None:
    loose = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=("N", "M")),), outputs=SIGNATURE.outputs)
    activate_plan(store, adder(2), signature=loose)
    async with served(store) as server:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 4}
        answer = await server.infer(json.dumps({"inputs": [tensor]}).encode())
        assert answer.status == 400
        assert answer.document["error"].startswith("the engine refuses this: the plan cannot be run")


@in_a_loop
async def test_without_an_engine_nothing_is_ready(store: LocalStorage) -> None:
    async with active(store) as model, serving({"lenet@production": model}) as server:
        await model.close()
        assert (await server.ask("GET", "/v2/health/ready")).document == {"ready": False}
        assert (await server.ask("GET", "/v2/models/lenet/ready")).status == 503
        assert (await server.ask("POST", "/v2/repository/index")).document[0]["state"] == "UNAVAILABLE"
        answer = await server.infer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert server.records.outcomes == ["refused"]


@in_a_loop
async def test_an_engine_that_dies_is_our_fault_and_an_observer_that_fails_is_nobodys(store: LocalStorage) -> None:
    isolated = ServingOptions(trial=False, isolate=True)
    others = children()
    async with active(store, options=isolated) as model, serving({"lenet@production": model}) as server:
        server.records.fails = True
        (pid,) = children() - others
        os.kill(pid, signal.SIGKILL)
        answer = await server.infer()
        assert (answer.status, answer.document["error"].split(" over ")[0]) == (500, "the engine failed")
        body, headers = binary_request("x", X)
        assert (await server.infer(body, **headers)).raw == np.ones((2, 3), np.float32).tobytes()  # started again
        assert server.records.outcomes == ["failed", "ok"]


@in_a_loop
async def test_two_channels_of_a_model_are_counted_apart_in_the_metrics(store: LocalStorage) -> None:
    async with active(store) as one, active(store) as two:
        async with serving({"lenet@production": one, "lenet@staging": two}, monitored=True) as server:
            assert [model.name for model in server.models] == ["lenet", "lenet@staging"]
            for name in ("lenet", "lenet@production", "lenet@staging"):
                assert (await server.infer(name=name)).status == 200
            assert [record.model for record in server.records.seen] == ["lenet", "lenet", "lenet@staging"]
            metrics = await server.ask("GET", "/metrics")
            assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert value_of(metrics.body, "nv_inference_request_success", model="lenet") == 2
            assert value_of(metrics.body, "nv_inference_request_success", model="lenet@staging") == 1
            document = (await server.ask("GET", "/v2/modelreg/monitor")).document
            assert document["models"]["lenet"]["requests"]["answered"] == 2
        async with serving({"lenet@production": one}) as server:
            assert (await server.ask("GET", "/metrics")).status == 404


@in_a_loop
async def test_an_observer_of_answers_that_fails_is_nobodys_fault(store: LocalStorage) -> None:
    class Taker:
        seen = 0

        def offer(self, model: str, inputs: Any, answer: Any) -> None:
            self.seen += len(answer["y"]) if model == "lenet" and "x" in inputs else 0
            raise RuntimeError("its own fault")

    async with active(store) as model:
        taker: Any = Taker()
        models = serve_models({"lenet@production": model}, Limits())
        visit = Visit(models[0], None, limits=Limits(), takers=[taker], began_s=time.monotonic())

        async def receive() -> Any:
            return {"type": "http.request", "body": adder_request(), "more_body": False}

        reply = await visit.answer({}, Body(receive, {}, Limits()), receive, lambda _size: None)
        assert (reply.status, taker.seen) == (200, 2)


def test_names_of_channels() -> None:
    assert name_models([("a", "x"), ("b", "x"), ("a", "y")]) == ("a", "b", "a@y")
    with pytest.raises(ValueError, match="once"):
        name_models([("a", "x"), ("a", "x")])
