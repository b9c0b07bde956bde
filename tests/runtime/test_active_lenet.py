"""The example's LeNet, promoted and rolled back by the command line while eight threads ask it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.manifest import parse_manifest
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.ort import open_session
from modelreg.runtime.serving import AlarmKind
from modelreg.runtime.trying import ServingOptions
from modelreg.runtime.warming import GoldenSmokeTest
from modelreg_testing.cli import Shop
from modelreg_testing.released_lenet import LENET, copy_of_released_lenet
from modelreg_testing.serving import eventually

pytestmark = pytest.mark.slow
Array = NDArray[Any]


@pytest.fixture
def lenet(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop.at(copy_of_released_lenet(tmp_path_factory, tmp_path / "home"))


def answers_of(shop: Shop, image: Array) -> Callable[[int], Array]:
    """Return what says what the engine of a generation answers, run here and alone."""
    known: dict[str, Array] = {}

    def answer(generation: int) -> Array:
        pointer = shop.storage.read_history("lenet", "production", generation)
        folder = shop.storage.release_path(pointer.release)
        assert folder is not None
        plan = folder / parse_manifest((folder / "manifest.json").read_bytes(), where="").engines[0].plan.path
        if pointer.release not in known:
            (known[pointer.release],) = open_session(str(plan), threads=1).run(None, {"image": image})
        return known[pointer.release]

    return answer


def test_promotes_and_rollbacks_under_load_fail_no_request_and_mix_no_answer(lenet: Shop, tmp_path: Path) -> None:
    image = np.random.default_rng(3).normal(size=(4, 1, 28, 28)).astype(np.float32)
    expected, over = answers_of(lenet, image), threading.Event()
    found: list[tuple[int, str, Array]] = []
    failed: list[Exception] = []
    options = ServingOptions(threads=1, smoke_test=GoldenSmokeTest(LENET / "golden-v1.npz", limit=2.0))

    def ask(model: ActiveModel) -> None:
        while not over.is_set():
            try:
                answer = model.infer({"image": image})
            except Exception as error:
                failed.append(error)
                return
            found.append((answer.generation, answer.digest, answer["logits"]))

    with ActiveModel(
        "lenet@production", store=lenet.home.store_url, cache=tmp_path / "cache", interval_s=0.2, options=options
    ) as model:
        threads = [threading.Thread(target=ask, args=(model,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: failed or found)
            for number, words in enumerate(
                [
                    ("rollback", "lenet", "--channel", "production"),
                    ("promote", "lenet:2", "--to", "production"),
                    ("promote", "lenet:1", "--to", "production", "--precision", "fp32"),
                    ("rollback", "lenet", "--channel", "production"),
                ],
                start=3,
            ):
                done = lenet.cli(*words)
                assert done.code == 0, done.err
                eventually(lambda: failed or found[-1][0] == number)  # noqa: B023 - asked before the next
        finally:
            over.set()
            for thread in threads:
                thread.join()
        state = model.state()
    assert failed == []
    assert {generation for generation, _, _ in found} >= {2, 3, 4, 5, 6}
    for served in range(2, 7):
        answers = np.stack([logits for generation, _, logits in found if generation == served])
        np.testing.assert_allclose(answers, np.broadcast_to(expected(served), answers.shape), rtol=1e-5, atol=1e-5)
    assert not np.allclose(expected(2), expected(3), rtol=1e-5, atol=1e-5)  # a mixed answer would show
    assert state.alarms == ()


def test_wrong_answers_beside_the_golden_set_keep_the_old_engine(lenet: Shop, tmp_path: Path) -> None:
    golden = GoldenSmokeTest(LENET / "golden-v2.npz", limit=0.1)
    with ActiveModel(
        "lenet@production",
        store=lenet.home.store_url,
        cache=tmp_path / "cache",
        interval_s=0.1,
        options=ServingOptions(smoke_test=golden),
    ) as model:
        assert lenet.cli("promote", "lenet:1", "--to", "production").code == 0  # answers as version 2 does not
        eventually(lambda: model.state().alarms)
        assert model.state().alarms[0].kind is AlarmKind.SMOKE
        assert "is off by" in model.state().alarms[0].message
        assert model.served.version == 2
