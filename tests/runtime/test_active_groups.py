"""A served model with several instances and dynamic batching, while releases change and processes are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import UsageError
from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.admission import Overlap
from modelreg.runtime.batches import Batching
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import Alarm, AlarmKind, DeadlineExceededError, QueueFullError
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.serving import (
    SIGNATURE,
    activate,
    activate_plan,
    adder,
    children,
    eventually,
    publish_plan,
    resident_bytes,
)

Array = NDArray[Any]
X = np.zeros((2, 3), np.float32)


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    return LocalStorage.create(in_memory / "store")


def options(**changes: Any) -> ServingOptions:
    return ServingOptions(**{"trial": False, "threads": 1, "device_retry_s": 0.1, **changes})


def serve(store: LocalStorage, chosen: ServingOptions, **changes: Any) -> ActiveModel:
    arguments: dict[str, Any] = {"cache": store.root.parent / "cache", "interval_s": 0.05, "options": chosen} | changes
    return ActiveModel("lenet@production", store=str(store.root), **arguments)


class Clients:
    """Threads that ask with batches of their own sizes and numbers, and check every row of every answer."""

    def __init__(self, model: ActiveModel, *, number: int = 6) -> None:
        self.answers, self.wrong, self.failed = 0, list[Any](), list[Exception]()
        self.generations = set[int]()
        self._model, self._over = model, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(number)]

    def _ask(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        while not self._over.is_set():
            sent = random.integers(-1000, 1000, (random.integers(1, 6), 3)).astype(np.float32)
            try:
                answer = self._model.infer({"x": sent}, timeout_s=60)
            except Exception as error:
                self.failed.append(error)
                return
            if not np.array_equal(answer["y"], sent + answer.generation):  # whole numbers: exact in float32
                self.wrong.append((answer.generation, sent, answer["y"]))
            self.generations.add(answer.generation)
            self.answers += 1

    @contextmanager
    def asking(self) -> Iterator[Clients]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()


@pytest.mark.parametrize(
    "chosen",
    [
        options(instances_per_device=2, batching=Batching(max_batch=8, max_delay_us=200)),
        options(batching=Batching(max_batch=4)),
        options(instances_per_device=2, overlap=Overlap.NEVER, batching=Batching(max_batch=8, max_delay_us=200)),
        options(instances_per_device=3, devices="all"),
    ],
    ids=["group and batches", "batches", "drain first", "group"],
)
def test_no_request_fails_or_is_mixed_while_releases_change(store: LocalStorage, chosen: ServingOptions) -> None:
    activate_plan(store, adder(1))
    with serve(store, chosen) as model, Clients(model).asking() as clients:
        for generation in range(2, 6):
            activate_plan(store, adder(generation))
            model.look_now()
            eventually(lambda: generation in clients.generations)  # noqa: B023 - asked before the next
        eventually(lambda: model.state().retired == 0)
        state = model.state()
    assert (clients.failed, clients.wrong) == ([], [])
    assert clients.generations == set(range(1, 6))
    assert state.alarms == ()
    assert state.last_swap is not None
    assert state.last_swap.freed is not False  # drained first, it is not asked
    assert len(state.instances) == (chosen.instances_per_device if chosen.has_group else 0)
    assert state.to_json()["instances"] == [each.to_json() for each in state.instances]


@pytest.mark.slow
def test_a_killed_child_of_three_is_an_alarm_and_nobodys_failure(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    heard: list[Alarm] = []
    chosen = options(isolate=True, instances_per_device=3, batching=Batching(max_batch=8), device_retry_s=0.5)
    others = children()
    with serve(store, chosen, on_alarm=heard.append) as model, Clients(model, number=3).asking() as clients:
        eventually(lambda: all(each.done > 5 for each in model.state().instances))
        pid = model.state().instances[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: heard)
        assert (heard[0].kind, "cpu is out" in heard[0].message) == (AlarmKind.DEVICE, True)
        eventually(lambda: model.state().alarms == ())
        done = model.state().instances[1].done
        eventually(lambda: model.state().instances[1].done > done + 5)
        activate_plan(store, adder(2))
        eventually(lambda: 2 in clients.generations)
    assert (clients.failed, clients.wrong) == ([], [])
    assert len(heard) == 1
    assert children() <= others


def test_a_group_whose_children_are_all_killed_is_started_again(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    heard: list[Alarm] = []
    with serve(
        store, options(isolate=True, instances_per_device=2, device_retry_s=600), on_alarm=heard.append
    ) as model:
        for each in model.state().instances:
            assert each.pid is not None
            os.kill(each.pid, signal.SIGKILL)

        def answers() -> bool:
            try:
                return bool(model.infer({"x": X})["y"].tolist() == [[1.0] * 3] * 2)
            except Exception:  # the request that found out
                return False

        eventually(answers)
        assert AlarmKind.DIED in {alarm.kind for alarm in heard}
        eventually(lambda: model.state().alarms == ())
        assert [each.out_since for each in model.state().instances] == [None, None]


def test_asyncio_needs_no_thread_for_a_request_that_waits(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    arguments: dict[str, Any] = {"cache": store.root.parent / "cache", "interval_s": 0.05}
    chosen = options(batching=Batching(max_batch=200, max_delay_us=60_000_000))

    async def ask_all() -> None:
        async with AsyncActiveModel("lenet@production", store=str(store.root), options=chosen, **arguments) as model:
            before = threading.active_count()
            sent = [np.full((1, 3), number, np.float32) for number in range(200)]
            tasks = [asyncio.create_task(model.infer({"x": each}, timeout_s=60)) for each in sent[:199]]
            await asyncio.sleep(0)
            assert (model.state().in_flight, model.state().waiting) == (199, 199)
            assert threading.active_count() <= before  # the one that opened the model may end meanwhile
            tasks.append(asyncio.create_task(model.infer({"x": sent[199]}, timeout_s=60)))  # now the batch is full
            answers = await asyncio.gather(*tasks)
            assert [answer["y"][0, 0] for answer in answers] == [number + 1 for number in range(200)]
            assert model.state().in_flight == 0
            with pytest.raises(RunError):
                await model.infer({"x": np.float32(1)})

    asyncio.run(ask_all())


def test_a_late_or_cancelled_request_of_asyncio_is_never_run(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    arguments: dict[str, Any] = {"cache": store.root.parent / "cache", "interval_s": 0.05}
    chosen = options(batching=Batching(max_batch=3, max_delay_us=60_000_000, max_queue=2))

    async def ask() -> None:
        async with AsyncActiveModel("lenet@production", store=str(store.root), options=chosen, **arguments) as model:
            with pytest.raises(DeadlineExceededError):
                await model.infer({"x": X}, timeout_s=0.05)
            task = asyncio.create_task(model.infer({"x": X[:1]}))
            await asyncio.sleep(0)
            assert model.state().waiting == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (model.state().waiting, model.state().in_flight) == (0, 0)
            waiting = [asyncio.create_task(model.infer({"x": X[:1]})) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError):
                await model.infer({"x": X[:1]})
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert (await model.infer({"x": np.zeros((3, 3), np.float32)}))["y"].shape == (3, 3)  # full: at once

    asyncio.run(ask())


def test_a_request_that_waits_for_its_turn_on_a_child_has_a_deadline_too(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    others = children()
    with serve(store, options(isolate=True)) as model:
        (pid,) = children() - others
        assert model.infer({"x": X}, timeout_s=60).generation == 1
        with pytest.raises(DeadlineExceededError):
            model.infer({"x": X}, timeout_s=0)
        os.kill(pid, signal.SIGSTOP)
        busy = threading.Thread(target=model.infer, args=({"x": X},))
        try:
            busy.start()
            eventually(lambda: model.state().in_flight == 1)
            with pytest.raises(DeadlineExceededError):
                model.infer({"x": X}, timeout_s=0.05)
        finally:
            os.kill(pid, signal.SIGCONT)
            busy.join()
        assert model.infer({"x": X}).generation == 1


FIXED = Signature(inputs=SIGNATURE.inputs, outputs=(TensorSpec(name="y", dtype="float32", shape=(1, 3)),))


def test_a_model_that_cannot_be_batched_is_refused_with_the_reason(store: LocalStorage) -> None:
    chosen = options(batching=Batching(max_batch=4))
    activate_plan(store, adder(1), signature=FIXED)
    with pytest.raises(UsageError, match="'y' has no free first axis"):
        serve(store, chosen)
    activate_plan(store, adder(2))
    with serve(store, chosen) as model:
        activate_plan(store, adder(3), signature=FIXED)
        eventually(lambda: model.state().alarms)
        assert model.state().alarms[0].kind is AlarmKind.LOAD
        assert model.infer({"x": X}).generation == 2


def test_devices_of_a_release_for_the_cpu_cannot_be_chosen(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    with pytest.raises(UsageError, match="runs on the CPU"):
        serve(store, options(devices=[0]))
    with pytest.raises(ValueError, match="devices is"):
        options(devices="GPU-1")
    with pytest.raises(ValueError, match="at least 1"):
        options(instances_per_device=0)


@pytest.mark.slow
def test_memory_and_threads_come_back_after_a_hundred_swaps(store: LocalStorage) -> None:
    chosen = options(instances_per_device=2, batching=Batching(max_batch=8))
    releases = [publish_plan(store, adder(number)) for number in (1, 2)]
    activate(store, releases[0])
    with serve(store, chosen) as model:

        def swap(number: int) -> tuple[int, int]:
            for _ in range(number):
                generation = activate(store, releases[model.served.generation % 2]).generation
                model.look_now()
                eventually(lambda: model.served.generation == generation)  # noqa: B023 - asked before the next
                assert model.infer({"x": X})["y"][0, 0] == 1 + (generation - 1) % 2
            eventually(lambda: model.state().retired == 0)
            return threading.active_count(), resident_bytes()

        threads, memory = swap(10)
        later_threads, later_memory = swap(100)
        assert model.state().swaps == 111
    assert later_threads == threads
    assert later_memory - memory < 16 << 20
