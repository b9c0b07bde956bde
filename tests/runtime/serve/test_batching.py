"""Dynamic batching behind a real socket: the batcher's queue is the queue, and its refusals are what clients hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.batches import Batching
from modelreg.runtime.instance_group import RequestLostError
from modelreg.runtime.runner import RunError
from modelreg.runtime.serve.inferring import translate
from modelreg.runtime.serving import DeadlineExceededError, NotServingError, QueueFullError
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.http_serving import Held, Server, adder_request, serving
from modelreg_testing.monitoring import value_of
from modelreg_testing.serving import activate_plan, adder

FOREVER_US = 60_000_000


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    made = LocalStorage.create(in_memory / "store")
    activate_plan(made, adder(1))
    return made


def model(store: LocalStorage, **options: object) -> AsyncActiveModel:
    chosen = ServingOptions(trial=False, threads=1, **options)  # type: ignore[arg-type]
    cache = store.root.parent / "cache"
    return AsyncActiveModel("lenet@production", store=str(store.root), cache=cache, options=chosen, lease=False)


@asynccontextmanager
async def batched(store: LocalStorage, *, max_queue: int = 100) -> AsyncIterator[Server]:
    """Serve with batches of 8 rows, which wait until they are full, and with one place without batching."""
    batching = Batching(max_batch=8, max_delay_us=FOREVER_US, max_queue=max_queue)
    async with (
        model(store, batching=batching) as active,
        serving({"lenet@production": active}, monitored=True, concurrency=1, max_queue=0) as server,
    ):
        yield server


async def until_waiting(server: Server, number: int) -> None:
    async def look() -> None:
        while server.models[0].waiting != number:
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), 60)


def test_the_servers_own_places_limit_no_batch_and_executions_are_counted_once(store: LocalStorage) -> None:
    async def ask() -> None:
        async with batched(store) as server:
            answers = await asyncio.gather(*(server.infer() for _ in range(8)))
            assert [each.status for each in answers] == [200] * 8
            assert sorted(record.executions for record in server.records.seen) == [0] * 6 + [1] * 2
            assert {record.batch_rows for record in server.records.seen} == {8}
            text = (await server.ask("GET", "/metrics")).body
            assert value_of(text, "nv_inference_count") == 16
            assert value_of(text, "nv_inference_exec_count") == 2
            (stats,) = (await server.ask("GET", "/v2/models/lenet/stats")).document["model_stats"]
            assert (stats["inference_count"], stats["execution_count"]) == (16, 2)
            assert [(each["batch_size"], each["compute_infer"]["count"]) for each in stats["batch_stats"]] == [(8, 2)]

    asyncio.run(ask())


def test_the_wait_for_a_batch_is_queue_time(store: LocalStorage) -> None:
    async def ask() -> None:
        async with batched(store) as server:
            early = asyncio.ensure_future(server.infer())
            await until_waiting(server, 1)
            await asyncio.sleep(0.1)
            await asyncio.gather(early, *(server.infer() for _ in range(3)))
            slowest = max(server.records.seen, key=lambda record: record.queue_s)
            assert slowest.queue_s >= 0.1
            assert slowest.queue_s + slowest.compute_s <= slowest.total_s

    asyncio.run(ask())


def test_a_full_queue_a_deadline_and_a_client_that_leaves(store: LocalStorage) -> None:
    async def ask() -> None:
        async with batched(store, max_queue=2) as server:
            expired = await server.infer(adder_request(parameters={"timeout": 50_000}))
            assert expired.status == 504
            await until_waiting(server, 0)  # it left the queue, and is never run
            staying = asyncio.ensure_future(server.infer())
            await until_waiting(server, 1)
            body = adder_request()
            _, leaving = await asyncio.open_connection("127.0.0.1", server.port)
            head = b"POST /v2/models/lenet/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            leaving.write(head + body)
            await until_waiting(server, 2)
            text = (await server.ask("GET", "/metrics")).body
            assert value_of(text, "nv_inference_pending_request_count") == 2
            refused = await server.infer()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.document == {"error": "2 requests wait, and no more may"}
            leaving.close()
            await until_waiting(server, 1)
            full = await server.infer(adder_request(rows=6))
            assert (full.status, (await staying).status) == (200, 200)
            assert sorted(server.records.outcomes) == ["canceled", "expired", "ok", "ok", "refused"]

    asyncio.run(ask())


def test_without_batching_there_is_a_place_for_each_instance_and_the_deadline_goes_along(store: LocalStorage) -> None:
    async def ask() -> None:
        async with model(store, instances_per_device=3) as active:
            holding = Held(active)
            async with serving({"lenet@production": holding}, concurrency=1, max_queue=0) as server:
                three = [asyncio.ensure_future(server.infer()) for _ in range(3)]
                while holding.began < 3:
                    await asyncio.sleep(0.005)
                assert (await server.infer()).status == 503
                assert holding.timeout_s is not None
                assert 0 < holding.timeout_s <= 60
                holding.go.set()
                assert [(await each).status for each in three] == [200] * 3
                assert active._threads is not None
                assert active._threads._max_workers == 4

    asyncio.run(ask())


def test_what_the_runtime_raises_is_what_the_client_hears() -> None:
    statuses = {
        RunError("shape"): (400, "invalid"),
        RequestLostError("two died over it"): (500, "failed"),
        QueueFullError("full"): (503, "refused"),
        NotServingError("none"): (503, "refused"),
        DeadlineExceededError("late"): (504, "expired"),
    }
    for error, expected in statuses.items():
        found = translate(error)
        assert (found.status, str(found.outcome)) == expected
        assert found.text.endswith(str(error)) or expected[0] == 500
