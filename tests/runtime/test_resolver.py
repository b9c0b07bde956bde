from collections.abc import Callable
from pathlib import Path

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import IntegrityError, InvalidReferenceError, NotFoundError
from modelreg.registry.manifest import Manifest, ReleasedEngine, make_manifest
from modelreg.registry.plans import parse_plan_header
from modelreg.registry.pointers import next_pointer
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import ActivationKind, Backend, Precision
from modelreg.runtime.host import Gpu, Host
from modelreg.runtime.resolver import judge, resolve
from modelreg_testing.plans import rtx_plan, tensorrt_plan
from modelreg_testing.records import TRT, digest_of, make_engine, make_version
from modelreg_testing.storage import stored_files

H200 = Gpu(name="NVIDIA H200", target="sm_90", driver="580.1")
EVERYTHING = frozenset(Backend)
PLANS = {"cpu": b"cpu", "sm_90": tensorrt_plan("8.6.0.12"), "sm_86": rtx_plan("1.7.1.116", "sm_86")}
RTX = ToolchainRecord(id=3, name="rtx", backend=Backend.TENSORRT_RTX, version="1.7.1.116", python="/p", details={})
RTX_3090 = Gpu(name="RTX 3090", target="sm_86", driver="580.1")


def host(*gpus: Gpu, backends: frozenset[Backend] = EVERYTHING, **versions: str) -> Host:
    known = {Backend[name]: version for name, version in versions.items()}
    return Host(name="h", gpus=gpus, backends=backends, versions=known)


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
        files = stored_files(made, {engine.plan.path: PLANS[engine.target]})
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
    assert found.path.read_bytes() == PLANS["sm_90"]
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


def rtx_engine() -> ReleasedEngine:
    (engine,) = make_manifest(make_version(), {"sm_86": make_engine(3, target="sm_86", toolchain=RTX)}).engines
    return engine


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ("1.7.1.116", "runs on sm_86"),
        ("", "runs on sm_86"),  # not known: the load will tell
        ("1.6.1.120", "needs tensorrt-rtx 1.7.1.116; this host has 1.6.1.120"),
        ("1.7.1.117", "needs tensorrt-rtx 1.7.1.116; this host has 1.7.1.117"),
    ],
)
def test_an_rtx_plan_needs_the_version_that_built_it(installed: str, reason: str) -> None:
    found = judge(rtx_engine(), host(RTX_3090, TENSORRT_RTX=installed))
    assert (found.reason, found.usable) == (reason, reason.startswith("runs"))


def test_a_plan_for_another_compute_capability_is_refused(storage: LocalStorage) -> None:
    found = judge(rtx_engine(), host(H200))
    assert found.reason == "needs sm_86; this host has sm_90, cpu"


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (rtx_plan("1.7.1.116", "sm_89"), "its header says sm_89, not sm_86"),
        (rtx_plan("1.6.1.120", "sm_86"), "its header says tensorrt-rtx 1.6.1.120, not 1.7.1.116"),
        (tensorrt_plan("10.3.0.26"), "its header is of tensorrt, not of tensorrt-rtx"),
    ],
)
def test_a_plan_that_is_not_what_the_release_says_is_refused(plan: bytes, reason: str) -> None:
    header = parse_plan_header(plan, size_bytes=len(plan), where="model.plan")
    found = judge(rtx_engine(), host(RTX_3090), header=header)
    assert found.reason == f"its plan is not what the release says: {reason}"
    assert not found.usable


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(PLANS["sm_90"][:20]), "is truncated"),
        (lambda path: path.write_bytes(b"ONNX" * 20), "is no TensorRT plan"),
        (lambda path: path.write_bytes(tensorrt_plan("8.6.1.6")), "8.6.1.6, not 8.6.0.12"),
        (lambda path: path.unlink(), "its plan cannot be read: No such file"),
    ],
)
def test_a_damaged_plan_is_named_and_the_cpu_serves(
    storage: LocalStorage, damage: Callable[[Path], None], reason: str
) -> None:
    (path,) = (storage.root / "releases").rglob("sm_90/model.onnx")
    path.parent.chmod(0o755)
    path.chmod(0o644)
    damage(path)
    found = resolve(storage, "lenet", "production", host(H200))
    assert found.chosen is not None
    assert found.chosen.target == "cpu"
    assert reason in found.candidates[1].reason
