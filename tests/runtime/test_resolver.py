import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import IntegrityError, InvalidReferenceError, NotFoundError
from modelreg.registry.manifest import Manifest, ReleasedEngine, make_manifest
from modelreg.registry.pointers import next_pointer
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import ActivationKind, Backend, Precision
from modelreg.runtime.host import Gpu, Host
from modelreg.runtime.resolver import rank, resolve, why_behind
from modelreg.runtime.suitability import Suitability, judge
from modelreg_testing.plans import rtx_plan, tensorrt_plan
from modelreg_testing.records import TRT, make_engine, make_version
from modelreg_testing.storage import stored_files

H200 = Gpu(name="NVIDIA H200", target="sm_90", driver="580.1")
EVERYTHING = frozenset(Backend)
PLANS = {"cpu": b"cpu", "sm_90": tensorrt_plan("8.6.0.12"), "sm_86": rtx_plan("1.7.1.116", "sm_86")}
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
    return serve(LocalStorage.create(tmp_path / "store"), two_targets())


def serve(made: LocalStorage, manifest: Manifest, *, overridden: tuple[str, ...] = ()) -> LocalStorage:
    engines = []
    for engine in manifest.engines:
        files = stored_files(made, {engine.plan.path: PLANS[engine.target]})
        engines.append(engine._replace(files=files))
    manifest = manifest._replace(engines=tuple(engines))
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
        overridden=overridden,
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


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(PLANS["sm_90"][:20]), "is truncated"),
        (lambda path: path.write_bytes(b"ONNX" * 20), "is no TensorRT plan"),
        (lambda path: path.write_bytes(tensorrt_plan("8.6.1.6")), "8.6.1.6, not 8.6.0.12"),
        (lambda path: path.unlink(), "model.onnx is not a file: nothing is there"),
        (replace_by_pipe, "model.onnx is a named pipe, not a file"),
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


def candidate(target: str, precision: Precision = Precision.FP16, *, level: str = "NONE") -> ReleasedEngine:
    (engine,) = make_manifest(make_version(), {target: make_engine(1, precision, target=target, toolchain=TRT)}).engines
    return engine._replace(hardware_compatibility=level)


def ranked(here: Host, *engines: ReleasedEngine, overridden: tuple[str, ...] = ()) -> list[Suitability]:
    wanted = (Precision.INT8, Precision.FP16)
    judged = [judge(engine, here, overridden=overridden) for engine in engines]
    return list(rank(judged, here, preference=lambda _target: wanted))


def test_engines_are_ranked_by_fit_then_gates_then_precision_then_nearness() -> None:
    exact = candidate("sm_90")
    near = candidate("sm_89", Precision.INT8, level="AMPERE_PLUS")
    far = candidate("sm_80", Precision.INT8, level="AMPERE_PLUS")
    unwanted = candidate("sm_86", Precision.FP16, level="AMPERE_PLUS")
    overridden = candidate("sm_120", Precision.INT8, level="AMPERE_PLUS")
    cpu = candidate("cpu", Precision.INT8)._replace(backend=Backend.ONNXRUNTIME)
    alien = candidate("sm_75")
    order = [exact, near, far, unwanted, overridden, cpu, alien]
    found = ranked(host(H200), *reversed(order), overridden=("sm_120 int8: validation fail: cosine",))
    assert [each.engine.target for each in found] == [engine.target for engine in order]
    assert [each.usable for each in found] == [True] * 6 + [False]
    best, *behind = found[:6]
    assert [why_behind(best, each) for each in behind] == [
        *["an exact match goes before a compatible one"] * 4,
        "a GPU goes before the CPU",
    ]
    assert why_behind(found[1], found[2]) == "sm_89 is nearer"
    assert why_behind(found[1], found[3]) == "int8 is preferred"
    assert why_behind(found[1], found[4]) == "its gates were overridden"


def test_an_exact_match_that_went_over_its_gates_still_goes_before_a_compatible_one() -> None:
    exact, other = candidate("sm_90"), candidate("sm_80", level="AMPERE_PLUS")
    found = ranked(host(H200), other, exact, overridden=("sm_90 fp16: not validated",))
    assert [each.engine.target for each in found] == ["sm_90", "sm_80"]


def test_the_first_gpu_of_a_host_goes_before_the_second() -> None:
    found = ranked(host(RTX_3090, H200), candidate("sm_90", Precision.INT8), candidate("sm_86"))
    assert [each.engine.target for each in found] == ["sm_86", "sm_90"]
    assert why_behind(found[0], found[1]) == "sm_86 is this host's first GPU"


def test_what_the_promotion_went_over_is_known_from_the_pointer(tmp_path: Path) -> None:
    storage = serve(
        LocalStorage.create(tmp_path / "store"), two_targets(), overridden=("sm_90 fp16: not validated, never run",)
    )
    found = resolve(storage, "lenet", "production", host(H200))
    assert [each.passes_gates for each in found.candidates] == [False, True]
    assert found.candidates[0].checks[-1].finding == "its gates were overridden: not validated, never run"
