from pathlib import Path

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import IntegrityError, InvalidReferenceError, NotFoundError
from modelreg.registry.manifest import Manifest, make_manifest
from modelreg.registry.pointers import next_pointer
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import ActivationKind, Backend, Precision
from modelreg.runtime.host import Gpu, Host
from modelreg.runtime.resolver import judge, resolve
from modelreg_testing.records import TRT, digest_of, make_engine, make_version
from modelreg_testing.storage import stored_files

H200 = Gpu(name="NVIDIA H200", target="sm_90", driver="580.1")
EVERYTHING = frozenset(Backend)


def host(*gpus: Gpu, backends: frozenset[Backend] = EVERYTHING) -> Host:
    return Host(name="h", gpus=gpus, backends=backends)


def two_targets() -> Manifest:
    return make_manifest(
        make_version(),
        {"cpu": make_engine(1), "sm_90": make_engine(2, Precision.FP16, target="sm_90", toolchain=TRT)},
    )


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    made = LocalStorage.create(tmp_path / "store")
    from dataclasses import replace

    manifest = two_targets()
    engines = []
    for engine in manifest.engines:
        files = stored_files(made, {engine.plan.path: engine.target.encode()})
        engines.append(replace(engine, files=files))
    manifest = replace(manifest, engines=tuple(engines))
    release = made.publish_release(manifest.to_bytes(), manifest.files)
    pointer = next_pointer(
        None,
        model="lenet",
        channel="production",
        release=release,
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=None,
        txn="t",
        actor="ada",
        message="",
        at=utc_now(),
    )
    made.swap_pointer(pointer, expected=None)
    return made


def test_a_host_with_the_gpu_loads_its_engine(storage: LocalStorage) -> None:
    found = resolve(storage, "lenet", "production", host(H200))
    assert found.chosen is not None
    assert found.chosen.target == "sm_90"
    assert found.path is not None
    assert found.path.read_bytes() == b"sm_90"
    assert [candidate.engine.target for candidate in found.candidates] == ["sm_90", "cpu"]


def test_a_host_without_a_gpu_falls_to_the_cpu_and_says_why(storage: LocalStorage) -> None:
    found = resolve(storage, "lenet", "production", host())
    assert found.chosen is not None
    assert found.chosen.target == "cpu"
    assert found.candidates[1].reason == "needs sm_90; this host has cpu"


def test_a_host_without_the_backend_is_told_so(storage: LocalStorage) -> None:
    found = resolve(storage, "lenet", "production", host(H200, backends=frozenset({Backend.ONNXRUNTIME})))
    assert found.chosen is not None
    assert found.chosen.target == "cpu"
    assert found.candidates[1].reason == "tensorrt is not installed here"


def test_nothing_that_runs_here_is_nothing_chosen(storage: LocalStorage) -> None:
    found = resolve(storage, "lenet", "production", host(backends=frozenset()))
    assert (found.chosen, found.path) == (None, None)
    assert not any(candidate.usable for candidate in found.candidates)


def test_a_channel_without_a_release_says_how_to_make_one(storage: LocalStorage) -> None:
    with pytest.raises(NotFoundError, match="lenet@staging has no active release") as raised:
        resolve(storage, "lenet", "staging", host())
    assert "modelreg promote" in raised.value.hint()


def test_hostile_names_never_reach_the_store(storage: LocalStorage) -> None:
    with pytest.raises(InvalidReferenceError):
        resolve(storage, "../lenet", "production", host())
    with pytest.raises(InvalidReferenceError):
        resolve(storage, "lenet", "../production", host())


def test_a_damaged_manifest_is_refused(storage: LocalStorage) -> None:
    release = next(iter(storage.iterate_releases()))
    path = storage.root / "releases" / release / "manifest.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"lenet", b"tenel"))
    with pytest.raises(IntegrityError):
        resolve(storage, "lenet", "production", host())


def test_judging_needs_only_the_manifest() -> None:
    cpu, gpu = two_targets().engines
    assert judge(cpu, host()).usable
    assert not judge(gpu, host()).usable
    assert cpu.plan.digest == digest_of(1)
