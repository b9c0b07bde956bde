from __future__ import annotations

from typing import Any

import pytest

from modelreg.registry.contents import StoredFile
from modelreg.registry.manifest import ReleasedEngine, RequiredPlugin, make_manifest
from modelreg.registry.plans import parse_plan_header
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.host import Gpu, Host, Interpreter
from modelreg.runtime.suitability import CheckOutcome, Suitability, find_target, judge, loads_compatible, why_not_here
from modelreg_testing.plans import rtx_plan, tensorrt_plan
from modelreg_testing.records import ORT, TRT, digest_of, make_engine, make_version

EVERYTHING = frozenset(Backend)
H200 = Gpu(name="NVIDIA H200", target="sm_90", driver="580.159.04")
RTX_3090 = Gpu(name="RTX 3090", target="sm_86", driver="580.1")
T4 = Gpu(name="Tesla T4", target="sm_75", driver="580.1")
RTX = ToolchainRecord(id=3, name="rtx", backend=Backend.TENSORRT_RTX, version="1.7.1.116", python="/p", details={})


def host(*gpus: Gpu, backends: frozenset[Backend] = EVERYTHING, **versions: str) -> Host:
    known = {Backend[name]: version for name, version in versions.items()}
    return Host(name="h", gpus=gpus, backends=backends, versions=known)


def engine(target: str = "sm_90", toolchain: ToolchainRecord = TRT, **changes: Any) -> ReleasedEngine:
    built = make_engine(3, Precision.FP16, target=target, toolchain=toolchain)
    (made,) = make_manifest(make_version(), {target: built}).engines
    return made._replace(**changes)


def rtx_engine() -> ReleasedEngine:
    return engine("sm_86", RTX)


def finding(found: Suitability, name: str) -> tuple[str, str]:
    """Return a check's outcome and finding."""
    (check,) = (check for check in found.checks if check.name == name)
    return str(check.outcome), check.finding


def test_judging_needs_only_the_manifest() -> None:
    cpu = judge(engine("cpu", ORT), host())
    assert (cpu.usable, cpu.reason, cpu.runs_on, cpu.is_exact, cpu.passes_gates) == (
        True,
        "runs on cpu",
        "cpu",
        True,
        True,
    )
    assert [check.name for check in cpu.checks] == ["gpu", "backend", "gates"]
    gpu = judge(engine(), host())
    assert (gpu.usable, gpu.reason, gpu.runs_on) == (False, "needs sm_90; this host has cpu", "")


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


def test_a_plan_for_another_compute_capability_is_refused() -> None:
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


def test_a_plan_for_several_targets_is_known_by_all_of_them() -> None:
    plan = bytearray(rtx_plan("1.7.1.116", "sm_86"))
    plan[32] |= 8  # sm_89
    header = parse_plan_header(bytes(plan), size_bytes=len(plan), where="model.plan")
    assert "says sm_86, sm_89, not sm_86" in judge(rtx_engine(), host(RTX_3090), header=header).reason
    both = rtx_engine()._replace(plan_targets=("sm_86", "sm_89"))
    assert judge(both, host(RTX_3090), header=header).usable
    single = parse_plan_header(rtx_plan("1.7.1.116", "sm_86"), size_bytes=len(plan), where="model.plan")
    assert not judge(both, host(RTX_3090), header=single).usable


@pytest.mark.parametrize(
    ("target", "level", "gpu", "reason"),
    [
        ("sm_90", "NONE", H200, "runs on sm_90"),
        ("sm_80", "NONE", H200, "needs sm_80; this host has sm_90, cpu"),
        ("sm_80", "AMPERE_PLUS", H200, "runs on sm_90: built for sm_80 as AMPERE_PLUS"),
        ("sm_120", "AMPERE_PLUS", RTX_3090, "runs on sm_86: built for sm_120 as AMPERE_PLUS"),
        ("sm_90", "AMPERE_PLUS", H200, "runs on sm_90"),
        ("sm_80", "AMPERE_PLUS", T4, "needs sm_80 or newer; this host has sm_75, cpu"),
        ("sm_90", "SAME_COMPUTE_CAPABILITY", H200, "runs on sm_90"),
        ("sm_89", "SAME_COMPUTE_CAPABILITY", RTX_3090, "needs sm_89; this host has sm_86, cpu"),
        ("sm_80", "A_LEVEL_OF_LATER", H200, "needs sm_80; this host has sm_90, cpu"),
    ],
)
def test_hardware_compatibility_decides_on_which_architectures_it_runs(
    target: str, level: str, gpu: Gpu, reason: str
) -> None:
    found = judge(engine(target, hardware_compatibility=level), host(gpu))
    assert (found.reason, found.usable) == (reason, reason.startswith("runs"))


def test_another_model_of_the_same_architecture_is_a_caveat() -> None:
    found = judge(engine(gpu="NVIDIA H100"), host(H200))
    outcome, said = finding(found, "gpu")
    assert (found.usable, outcome) == (True, "caveat")
    assert said == "built on NVIDIA H100, and this host has NVIDIA H200: it may be slower, or fail"
    for fine in (engine(gpu="NVIDIA H200"), engine(gpu="NVIDIA H100", hardware_compatibility="AMPERE_PLUS")):
        assert finding(judge(fine, host(H200)), "gpu")[0] == "ok"


@pytest.mark.parametrize(
    ("built", "installed", "loads"),
    [
        ("8.6.0.12", "8.6.1.6", True),
        ("8.6.1.6", "8.6.0.12", False),
        ("10.3.0.26", "10.3.0", True),
        ("10.3.0.26", "10.16.1.11", True),
        ("10.16.1.11", "10.3.0.26", False),
        ("8.6.1.6", "10.0.1.6", True),
        ("10.0.1.6", "11.4.0.106", True),
        ("8.6.1.6", "11.0.0.114", False),
        ("8.6.1.6", "9.3.0.1", False),
        ("11.0.0.114", "10.16.1.11", False),
        ("10.3.0.26", "8.6.1.6", False),
        ("8.5.3.1", "8.6.1.6", False),
        ("", "8.6.1.6", False),
        ("8.6.1.6", "", False),
    ],
)
def test_a_version_compatible_plan_loads_in_newer_versions_of_its_major_and_in_the_next(
    built: str, installed: str, loads: bool
) -> None:
    assert loads_compatible(built, installed) is loads


def test_a_newer_tensorrt_loads_only_what_is_version_compatible() -> None:
    compatible = engine(backend_version="10.3.0.26", version_compatible=True)
    found = judge(compatible, host(H200, TENSORRT="11.4.0.106"))
    assert found.usable
    assert finding(found, "backend")[1].startswith("tensorrt 11.4.0.106 loads it where host code is allowed")
    refused = judge(compatible._replace(version_compatible=False), host(H200, TENSORRT="11.4.0.106"))
    assert refused.reason == "needs tensorrt 10.3.0.26; this host has 11.4.0.106"
    old = judge(compatible, host(H200, TENSORRT="8.6.0"))
    assert old.reason == "needs tensorrt 10.3.0.26 or a newer 10, or 11; this host has 8.6.0"
    newest = judge(compatible._replace(backend_version="11.4.0.106"), host(H200, TENSORRT="11.1.0.106"))
    assert newest.reason == "needs tensorrt 11.4.0.106 or a newer 11; this host has 11.1.0.106"


def test_rtx_has_no_compatible_versions() -> None:
    found = judge(rtx_engine()._replace(version_compatible=True), host(RTX_3090, TENSORRT_RTX="1.8.0.1"))
    assert found.reason == "needs tensorrt-rtx 1.7.1.116; this host has 1.8.0.1"


def test_the_interpreter_with_the_engines_own_version_loads_it() -> None:
    def others(**versions: str) -> Host:
        found = tuple(
            Interpreter(path=f"/{name}", versions={Backend.TENSORRT: text}) for name, text in versions.items()
        )
        return Host(name="h", gpus=(H200,), backends=frozenset(), interpreters=found)

    compatible = engine(backend_version="10.3.0.26", version_compatible=True)
    found = judge(compatible, others(eight="8.6.0", later="10.9.0", unknown="", own="10.3.0"))
    assert (found.python, finding(found, "backend")) == ("/own", ("ok", "tensorrt 10.3.0 is here"))
    later = judge(compatible, others(eight="8.6.0", later="10.9.0"))
    assert later.python == "/later"
    none = judge(compatible, others(eight="8.6.0", nine="8.6.1"))
    assert (none.python, none.usable) == ("", False)
    assert none.reason.endswith("this host has 8.6.0, 8.6.1")


@pytest.mark.parametrize(
    ("cuda", "version", "driver", "outcome", "said"),
    [
        ("12", "10.3.0.26", "525.60.13", "ok", "driver 525.60.13 has CUDA 12"),
        ("12.4", "10.3.0.26", "470.1", "refused", "CUDA 12.4 needs driver 525 or newer; this host has 470.1"),
        ("12", "11.0.0.114", "525.60.13", "refused", "CUDA 12 needs driver 535 or newer; this host has 525.60.13"),
        ("12", "11.0.0.114", "535.1", "ok", "driver 535.1 has CUDA 12"),
        ("13", "11.0.0.114", "575.1", "refused", "CUDA 13 needs driver 580 or newer; this host has 575.1"),
        ("13", "11.0.0.114", "580.1", "ok", "driver 580.1 has CUDA 13"),
        ("11", "8.6.0.12", "450.80", "ok", "driver 450.80 has CUDA 11"),
        ("", "8.6.0.12", "450.80", "ok", "driver 450.80; what is needed is not known"),
        ("14", "12.0.0.1", "580.1", "ok", "driver 580.1; what is needed is not known"),
        ("13", "11.0.0.114", "[N/A]", "ok", "driver [N/A]; what is needed is not known"),
    ],
)
def test_the_driver_must_have_the_cuda_of_the_engine(
    cuda: str, version: str, driver: str, outcome: str, said: str
) -> None:
    found = judge(engine(cuda=cuda, backend_version=version), host(H200._replace(driver=driver)))
    assert finding(found, "driver") == (outcome, said)
    assert found.usable is (outcome == "ok")


def test_plugins_must_be_in_the_release() -> None:
    needing = engine(plugins=(RequiredPlugin(name="libscan.so", digest=digest_of(77)),))
    refused = judge(needing, host(H200))
    assert refused.reason == "needs plugins that the release does not have: libscan.so (000000000000)"
    library = StoredFile(path="sm_90/libscan.so", digest=digest_of(77), size_bytes=5)
    whole = judge(needing._replace(files=(*needing.files, library)), host(H200))
    assert whole.usable
    assert finding(whole, "plugins") == ("ok", "loaded first: libscan.so")


def test_overridden_gates_are_a_caveat_of_that_engine_alone() -> None:
    gone_over = ("sm_90 int8: not validated", "sm_90 fp16: validation fail: cosine of y")
    found = judge(engine(), host(H200), overridden=gone_over)
    assert (found.usable, found.passes_gates) == (True, False)
    assert finding(found, "gates") == ("caveat", "its gates were overridden: validation fail: cosine of y")
    assert judge(engine(), host(H200), overridden=gone_over[:1]).passes_gates


def test_every_check_is_made_even_if_one_refuses() -> None:
    found = judge(engine(cuda="13"), host(T4, backends=frozenset()), damage="its plan cannot be read: no")
    refused = [check.name for check in found.checks if check.outcome is CheckOutcome.REFUSED]
    assert refused == ["plan", "gpu", "backend"]
    assert found.reason == "its plan cannot be read: no"


def test_a_header_that_fits_is_a_check_that_passed() -> None:
    plan = tensorrt_plan("8.6.0.12")
    header = parse_plan_header(plan, size_bytes=len(plan), where="model.plan")
    assert finding(judge(engine(), host(H200), header=header), "plan") == ("ok", "its header says tensorrt 8.6.0.12")


@pytest.mark.parametrize(
    ("target", "level", "found"),
    [
        ("cpu", "NONE", "cpu"),
        ("sm_90", "NONE", "sm_90"),
        ("sm_86", "NONE", ""),
        ("sm_86", "SAME_COMPUTE_CAPABILITY", ""),
        ("sm_86", "AMPERE_PLUS", "sm_90"),
    ],
)
def test_a_host_runs_what_it_was_built_for_or_what_is_compatible(target: str, level: str, found: str) -> None:
    host = Host(name="n", gpus=(H200,), backends=frozenset())
    assert find_target(target, level=level, host=host) == found
    reason = why_not_here(target, level=level, host=host)
    assert reason == ("" if found else "needs sm_86; this host has sm_90, cpu")
