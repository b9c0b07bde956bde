"""The reference of a release comes from its store: an FP32 engine beside what is served, else the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import ModelregError, NotFoundError
from modelreg.registry.manifest import make_manifest
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Precision
from modelreg.runtime.monitoring.references import ReleasedReference
from modelreg_testing.monitoring import engine
from modelreg_testing.records import make_engine, make_version
from modelreg_testing.serving import SIGNATURE, adder
from modelreg_testing.storage import stored_files

X: dict[str, NDArray[Any]] = {"x": np.ones((2, 3), np.float32)}


@pytest.fixture
def store(in_memory: Path) -> LocalStorage:
    return LocalStorage.create(in_memory / "store")


def publish(
    storage: Storage, plans: dict[str, tuple[Precision, float]], *, source: float
) -> tuple[str, dict[str, str]]:
    """Publish a release whose engine of each target adds a number; return its digest, and each plan's by target."""
    made = make_manifest(make_version(), {target: make_engine(1) for target in plans})
    engines = tuple(
        made.engines[0]._replace(
            target=target,
            precision=precision,
            files=stored_files(storage, {f"{target}/model.onnx": adder(number)}),
        )
        for target, (precision, number) in plans.items()
    )
    digest = storage.put_bytes(adder(source)).digest
    manifest = made._replace(signature=SIGNATURE, source_digest=digest, engines=engines)
    release = storage.publish_release(manifest.to_bytes(), manifest.files)
    return release, {each.target: each.plan.digest for each in engines}


def added(storage: LocalStorage | str, release: str, digest: str) -> float:
    """Return what the reference of a served engine adds."""
    reference = ReleasedReference(storage).open(engine(1, release=release, digest=digest))
    try:
        return float(reference.run(X)["y"][0, 0]) - 1
    finally:
        reference.close()


def test_the_fp32_engine_of_the_release_answers_where_another_is_served(store: LocalStorage) -> None:
    plans = {"cpu": (Precision.FP32, 5.0), "sm_90": (Precision.INT8, 6.0)}
    release, digests = publish(store, plans, source=7.0)
    assert added(str(store.root), release, digests["sm_90"]) == 5
    assert added(store, release, digests["cpu"]) == 7  # beside itself it would always be right


def test_without_one_the_source_answers_and_nothing_is_left(
    store: LocalStorage, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    release, digests = publish(store, {"cpu": (Precision.INT8, 6.0)}, source=7.0)
    assert added(store, release, digests["cpu"]) == 7
    assert list(tmp_path.glob("modelreg-parity-*")) == []


def test_a_source_that_is_gone_or_no_model_is_no_reference_and_nothing_is_left(
    store: LocalStorage, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    release, digests = publish(store, {"cpu": (Precision.INT8, 6.0)}, source=7.0)
    served = engine(1, release=release, digest=digests["cpu"])
    store.delete_blob(store.put_bytes(adder(7.0)).digest)
    with pytest.raises(NotFoundError):
        ReleasedReference(store).open(served)
    with pytest.raises(ModelregError):
        ReleasedReference(str(store.root / "elsewhere")).open(served)
    assert list(tmp_path.glob("modelreg-parity-*")) == []
