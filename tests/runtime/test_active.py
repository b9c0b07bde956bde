"""A served model: requests go on while releases come and go, and each answer says who gave it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import ModelregError, NotFoundError, UsageError, WorkerError
from modelreg.registry.leases import read_leases
from modelreg.registry.storage.local import LocalStorage
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.admission import Overlap
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import Alarm, AlarmKind, NotServingError, SmokeTestError, SwapMode
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.pulls import blob_of
from modelreg_testing.serving import (
    activate,
    activate_plan,
    adder,
    children,
    crashing,
    eventually,
    open_files,
    publish_plan,
    renamed_input,
    resident_bytes,
)
from modelreg_testing.storage_faults import overwrite

Array = NDArray[Any]
X = np.zeros((2, 3), np.float32)
QUICK = ServingOptions(trial=False)


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    return LocalStorage.create(in_memory / "store")


def serve(store: LocalStorage, **changes: Any) -> ActiveModel:
    """Serve from a store, looking often."""
    arguments: dict[str, Any] = {"cache": store.root.parent / "cache", "interval_s": 0.05, "options": QUICK} | changes
    return ActiveModel("lenet@production", store=str(store.root), **arguments)


class Clients:
    """Threads that ask all the time; `wrong` has the answers that are not of the generation that they carry."""

    def __init__(self, model: ActiveModel, *, number: int = 8) -> None:
        self.answers, self.wrong, self.failed = 0, list[tuple[int, float]](), list[Exception]()
        self.generations = set[int]()
        self._model, self._over = model, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(number)]

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                answer = self._model.infer({"x": X})
            except Exception as error:
                self.failed.append(error)
                return
            found = set(answer["y"].ravel().tolist())
            if found != {float(answer.generation)}:
                self.wrong.append((answer.generation, found.pop()))
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


def test_no_request_fails_or_is_mixed_while_releases_change_under_eight_threads(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    with serve(store) as model, Clients(model).asking() as clients:
        for generation in range(2, 8):
            activate_plan(store, adder(generation))
            eventually(lambda: model.served.generation == generation)  # noqa: B023 - asked before the next
            before = clients.answers
            eventually(lambda: clients.answers > before + 50)  # noqa: B023 - as above
        eventually(lambda: model.state().retired == 0)
        state = model.state()
    assert (clients.failed, clients.wrong) == ([], [])
    assert clients.generations == set(range(1, 8))
    assert state.last_swap is not None
    assert (state.alarms, state.swaps, state.last_swap.mode, state.last_swap.freed) == ((), 7, SwapMode.OVERLAP, True)


def test_a_new_release_with_the_same_engine_is_a_new_label_alone(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    with serve(store) as model:
        current = store.read_pointer("lenet", "production")
        assert current is not None
        second = activate(store, current.release)
        eventually(lambda: model.served.generation == second.generation)
        last = model.state().last_swap
        assert last is not None
        assert last.mode is SwapMode.SAME_ENGINE
        assert model.infer({"x": X}).generation == 2


def refuse_negative(run: Any) -> None:
    if run({"x": X})["y"].min() < 0:
        raise SmokeTestError("a negative answer")


@pytest.mark.parametrize(
    ("plan", "options", "kind", "words"),
    [
        (b"no model at all", ServingOptions(), AlarmKind.LOAD, "cannot be loaded"),
        (crashing(), ServingOptions(), AlarmKind.LOAD, "SIGFPE"),
        (adder(np.nan), QUICK, AlarmKind.SMOKE, "NaN or Inf"),
        (adder(-1), ServingOptions(trial=False, smoke_test=refuse_negative), AlarmKind.SMOKE, "a negative answer"),
    ],
    ids=["garbage", "crash", "nan", "wrong"],
)
def test_a_release_that_is_no_good_leaves_the_old_one_and_raises_one_alarm(
    store: LocalStorage, plan: bytes, options: ServingOptions, kind: AlarmKind, words: str
) -> None:
    activate_plan(store, adder(1))
    heard: list[Alarm] = []
    with serve(store, on_alarm=heard.append, options=options) as model, Clients(model, number=2).asking() as clients:
        activate_plan(store, plan)
        eventually(lambda: heard)
        before = clients.answers
        eventually(lambda: clients.answers > before + 100)
        state = model.state()
        assert state.served is not None
        assert (state.served.generation, state.store_generation, state.is_current) == (1, 2, False)
        assert [alarm.kind for alarm in heard] == [alarm.kind for alarm in state.alarms] == [kind]
        assert words in heard[0].message
        assert heard[0].generation == 2
        activate_plan(store, adder(3))
        eventually(lambda: model.served.generation == 3)
        eventually(lambda: model.state().alarms == ())
    assert (clients.failed, clients.wrong) == ([], [])


def test_what_was_refused_is_not_tried_again_at_every_look(store: LocalStorage) -> None:
    tries: list[int] = []

    def refuse_second(run: Any) -> None:
        tries.append(int(run({"x": X})["y"].flat[0]))
        if tries[-1] == 2:
            raise SmokeTestError("not this one")

    activate_plan(store, adder(1))
    with serve(store, options=ServingOptions(trial=False, smoke_test=refuse_second)) as model:
        activate_plan(store, adder(2))
        eventually(lambda: model.state().alarms)
        looks = threading.Event()
        assert not looks.wait(0.5)  # ten looks
        assert tries == [1, 2]
        model.look_now()
        eventually(lambda: tries == [1, 2, 2])


def test_damage_in_the_store_leaves_the_old_one(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    heard: list[Alarm] = []
    with serve(store, on_alarm=heard.append) as model:
        release = publish_plan(store, content := adder(2))
        overwrite(blob_of(store, content), content[:-1] + b"!")
        activate(store, release)
        eventually(lambda: heard)
        assert heard[0].kind is AlarmKind.STORE
        assert model.infer({"x": X}).generation == 1


def test_other_inputs_are_refused_unless_they_are_wanted(store: LocalStorage) -> None:

    from modelreg_testing.serving import SIGNATURE

    other = SIGNATURE._replace(inputs=(SIGNATURE.inputs[0]._replace(name="image"),))
    activate_plan(store, adder(1))
    with serve(store) as model:
        activate_plan(store, renamed_input(2), signature=other)
        eventually(lambda: model.state().alarms)
        assert "clients send x" in model.state().alarms[0].message
    options = ServingOptions(trial=False, accept_new_inputs=True)
    with serve(store, options=options) as model:
        assert model.infer({"image": X}).generation == 2


def test_drain_first_makes_requests_wait_and_none_fail(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    options = ServingOptions(trial=False, overlap=Overlap.NEVER)
    with serve(store, options=options) as model, Clients(model).asking() as clients:
        activate_plan(store, adder(2))
        eventually(lambda: model.state().swaps == 2 and 2 in clients.generations)
        last = model.state().last_swap
        assert last is not None
        assert last.mode is SwapMode.DRAIN_FIRST
        activate_plan(store, b"garbage")
        eventually(lambda: model.state().alarms)
        before = clients.answers
        eventually(lambda: clients.answers > before)  # the old one was loaded again
        assert model.served.generation == 2
    assert (clients.failed, clients.wrong) == ([], [])


def test_a_store_that_goes_away_changes_nothing_and_a_restart_serves_what_is_here(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    away = store.root.with_name("away")
    with serve(store) as model:
        shutil.move(store.root, away)
        eventually(lambda: model.state().alarms)
        assert model.state().alarms[0].kind is AlarmKind.STORE
        assert model.infer({"x": X}).generation == 1
    with serve(store) as model:
        assert model.infer({"x": X}).generation == 1
        shutil.move(away, store.root)
        activate_plan(store, adder(2))
        eventually(lambda: model.served.generation == 2)
        eventually(lambda: model.state().alarms == ())


def test_what_cannot_be_served_at_all_is_an_error_and_leaves_no_thread(store: LocalStorage) -> None:
    before = threading.active_count()
    with pytest.raises(UsageError):
        ActiveModel("lenet", store=str(store.root))
    with pytest.raises(NotFoundError):
        serve(store)
    activate_plan(store, b"garbage")
    with pytest.raises(ModelregError, match="cannot be loaded"):
        serve(store)
    assert threading.active_count() == before


def test_a_wrong_request_fails_alone(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    with serve(store) as model:
        for inputs in ({}, {"z": X}, {"x": np.zeros((2, 4), np.float32)}):
            with pytest.raises(RunError):
                model.infer(inputs)
        assert model.infer({"x": X})["y"].tolist() == [[1.0] * 3] * 2
        assert model.state().in_flight == 0
    with pytest.raises(NotServingError):
        model.infer({"x": X})
    model.close()


def test_a_lease_is_held_on_what_answers_and_given_back(store: LocalStorage) -> None:
    activate_plan(store, adder(1))

    def held() -> list[int]:
        return [lease.generation for lease in read_leases(store).live]

    with serve(store, instance="api-1") as model:
        eventually(lambda: held() == [1])
        activate_plan(store, b"garbage")
        eventually(lambda: model.state().alarms)
        assert held() == [1]
        activate_plan(store, adder(3))
        eventually(lambda: held() == [3])
    assert held() == []


def test_nothing_is_left_after_many_swaps(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    others = children()
    with serve(store) as model, Clients(model, number=2).asking() as clients:

        def swap_until(last: int, first: int) -> tuple[int, int]:
            for generation in range(first, last):
                activate_plan(store, adder(generation))
                model.look_now()
                eventually(lambda: model.served.generation == generation)  # noqa: B023 - asked before the next
            eventually(lambda: model.state().retired == 0)
            return threading.active_count(), resident_bytes()

        threads, memory = swap_until(8, 2)
        files = open_files()
        later_threads, later_memory = swap_until(28, 8)
    assert (clients.failed, clients.wrong) == ([], [])
    assert later_threads == threads
    assert open_files() <= files
    assert later_memory - memory < 32 << 20
    assert children() <= others


def test_an_engine_whose_process_is_killed_is_started_again(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    heard: list[Alarm] = []
    others = children()
    with serve(store, options=ServingOptions(isolate=True), on_alarm=heard.append) as model:
        (pid,) = children() - others
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError):
            model.infer({"x": X})
        assert model.infer({"x": X})["y"].tolist() == [[1.0] * 3] * 2  # it waited for the new one
        assert [alarm.kind for alarm in heard] == [AlarmKind.DIED]
        eventually(lambda: model.state().alarms == ())
        activate_plan(store, crashing())
        eventually(lambda: len(heard) == 2)
        assert model.infer({"x": X}).generation == 1
    assert children() <= others


def test_ctrl_c_in_a_call_fails_no_later_one(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    others = children()
    with serve(store, options=ServingOptions(isolate=True, trial=False), lease=False) as model:
        (pid,) = children() - others
        os.kill(pid, signal.SIGSTOP)
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            model.infer({"x": X})
        interrupt.join()
        assert model.infer({"x": X}).generation == 1


def test_a_new_release_ends_the_alarm_of_an_engine_that_could_not_be_started_again(
    store: LocalStorage, tmp_path: Path
) -> None:
    activate_plan(store, adder(1))
    others = children()
    cache = tmp_path / "cache"
    with serve(store, options=ServingOptions(isolate=True, trial=False), cache=cache, lease=False) as model:
        for file in (cache / "releases").rglob("*.onnx"):
            overwrite(file, b"damaged")
        (pid,) = children() - others
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError):
            model.infer({"x": X})
        eventually(lambda: any("does not match" in alarm.message for alarm in model.state().alarms))
        activate_plan(store, adder(2))
        assert model.infer({"x": X}).generation == 2
        eventually(lambda: model.state().alarms == ())


def test_asyncio_goes_on_while_engines_work(store: LocalStorage) -> None:
    activate_plan(store, adder(1))
    arguments: dict[str, Any] = {"cache": store.root.parent / "cache", "interval_s": 0.05, "options": QUICK}

    async def ask_all() -> set[int]:
        async with AsyncActiveModel("lenet@production", store=str(store.root), **arguments) as model:
            first = await asyncio.gather(*(model.infer({"x": X}) for _ in range(50)))
            activate_plan(store, adder(2))
            while model.state().swaps < 2:
                await asyncio.sleep(0.01)
            cancelled = asyncio.ensure_future(model.infer({"x": X}))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            second = await asyncio.gather(*(model.infer({"x": X}) for _ in range(50)))
        with pytest.raises(NotServingError):
            await model.infer({"x": X})
        answers = [*first, *second]
        assert all(answer["y"].flat[0] == answer.generation for answer in answers)
        return {answer.generation for answer in answers}

    assert asyncio.run(ask_all()) == {1, 2}
