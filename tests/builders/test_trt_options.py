"""What the user says about a TensorRT build, in trtexec's spelling."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from modelreg.builders.trt_options import (
    TacticSources,
    TensorRTOptions,
    digest_file,
    given_options,
    parse_pools,
    parse_tactic_sources,
    require_options,
    require_places,
)
from modelreg.registry.errors import CellRefusedError, UsageError
from modelreg.registry.words import Backend

TRT = Backend.TENSORRT


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("workspace:4096", {"WORKSPACE": 4096 << 20}),
        ("workspace:1.5G, tacticSharedMem:512K", {"WORKSPACE": 3 << 29, "TACTIC_SHARED_MEMORY": 512 << 10}),
        (
            "dlaSRAM:1M,dlaLocalDRAM:10B,dlaGlobalDRAM:1g",
            {"DLA_MANAGED_SRAM": 1 << 20, "DLA_LOCAL_DRAM": 10, "DLA_GLOBAL_DRAM": 1 << 30},
        ),
    ],
)
def test_memory_pools_are_spelled_as_trtexec_has_them(text: str, pools: dict[str, int]) -> None:
    assert parse_pools(text) == pools


@pytest.mark.parametrize(
    "text", ["workspace", "workspace:", "4096", "scratch:1", "workspace:-1", "workspace:1T", "workspace:1.2.3"]
)
def test_a_memory_pool_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not NAME:SIZE"):
        parse_pools(text)


@pytest.mark.parametrize("size", ["99999999999999999999999999", "9" * 400, "8796093022208", "8589934592G"])
def test_a_memory_pool_larger_than_any_memory_is_refused(size: str) -> None:
    with pytest.raises(UsageError, match="memory pool workspace cannot be that large"):
        parse_pools(f"workspace:{size}")


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="memory pool workspace has two sizes"):
        parse_pools("workspace:1,workspace:2")
    with pytest.raises(UsageError, match="tactic source CUDNN is in '-CUDNN,\\+cudnn' twice"):
        parse_tactic_sources("-CUDNN,+cudnn")


def test_tactic_sources_are_changes_to_the_default_or_to_none() -> None:
    assert parse_tactic_sources("-cudnn,+CUBLAS") == TacticSources(on=("CUBLAS",), off=("CUDNN",))
    assert parse_tactic_sources("none") == TacticSources(none=True)
    assert parse_tactic_sources("none,+JIT_CONVOLUTIONS").to_json() == {
        "none": True,
        "on": ["JIT_CONVOLUTIONS"],
        "off": [],
    }
    for text in ("CUDNN", "-", ""):
        with pytest.raises(UsageError, match=r"are not \+NAME or -NAME"):
            parse_tactic_sources(text)


def test_defaults_ask_for_nothing_that_any_release_lacks() -> None:
    for backend, version in ((TRT, "8.6.0"), (TRT, "11.4.0.106"), (Backend.TENSORRT_RTX, "1.7.1")):
        require_options(TensorRTOptions(), backend=backend, version=version)
    assert given_options(TensorRTOptions()) == []
    assert TensorRTOptions().flags == ()


@pytest.mark.parametrize(
    ("options", "version", "fact"),
    [
        (TensorRTOptions(hardware_compatibility="SAME_COMPUTE_CAPABILITY"), "8.6.0", "sameComputeCapability"),
        (TensorRTOptions(memory_pools={"TACTIC_SHARED_MEMORY": 1}), "8.6.0", "--memPoolSize tacticSharedMem"),
        (TensorRTOptions(pin_tactics=True), "8.6.0", "--errorOnTimingCacheMiss"),
        (TensorRTOptions(implicit_calibration=True), "11.0.0", "--implicit-calibration"),
    ],
)
def test_what_a_version_lacks_is_refused_by_its_spelling(options: TensorRTOptions, version: str, fact: str) -> None:
    assert fact in " ".join(given_options(options))
    with pytest.raises(
        CellRefusedError, match=f"tensorrt {version} has no .*{fact}".replace(".", r"\.").replace(r"\.*", ".*")
    ):
        require_options(options, backend=TRT, version=version)
    require_options(options, backend=TRT, version="10.16.1")


def test_rtx_takes_memory_pools_and_little_else() -> None:
    rtx = Backend.TENSORRT_RTX
    require_options(TensorRTOptions(memory_pools={"WORKSPACE": 1}), backend=rtx, version="1.7.1")
    for options in (TensorRTOptions(version_compatible=True), TensorRTOptions(refit=True), TensorRTOptions(dla_core=0)):
        with pytest.raises(CellRefusedError, match=r"tensorrt-rtx 1\.7\.1 has no"):
            require_options(options, backend=rtx, version="1.7.1")


def test_the_recipe_knows_files_by_their_digests_and_flags_by_name(tmp_path: Path) -> None:
    plugin = tmp_path / "libplugin.so"
    plugin.write_bytes(b"code")
    options = TensorRTOptions(plugins=(plugin,), version_compatible=True, gpu_fallback=True, dla_core=1)
    body = options.to_recipe()
    assert body["plugins"] == [{"name": "libplugin.so", "digest": hashlib.sha256(b"code").hexdigest()}]
    assert (body["optimisation_level"], body["dla_core"], body["timing_cache"]) == (3, 1, "")
    assert options.flags == ("VERSION_COMPATIBLE", "GPU_FALLBACK")


def test_a_timing_cache_decides_a_plan_only_where_tactics_are_pinned_to_it(tmp_path: Path) -> None:
    cache = tmp_path / "timing.cache"
    assert TensorRTOptions(timing_cache=cache).to_recipe()["timing_cache"] == ""
    pinned = TensorRTOptions(timing_cache=cache, pin_tactics=True)
    with pytest.raises(UsageError, match="pins tactics to a timing cache, and there is none"):
        pinned.to_recipe()
    cache.write_bytes(b"timings")
    assert pinned.to_recipe()["timing_cache"] == digest_file(cache)
    with pytest.raises(UsageError, match="there is none"):
        TensorRTOptions(pin_tactics=True).to_recipe()


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.so is not a file: nothing is there"):
        digest_file(tmp_path / "nothing.so")


def test_a_pipe_or_a_device_is_no_file_to_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    with pytest.raises(UsageError, match="is a named pipe, not a file"):
        digest_file(tmp_path / "pipe.so")
    with pytest.raises(UsageError, match="is a device, not a file"):
        digest_file(Path("/dev/zero"))


@pytest.mark.parametrize("option", ["timing_cache", "calibration_cache"])
def test_a_cache_is_looked_at_before_anything_is_built(tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, fact in [
        (tmp_path / "pipe", "is a named pipe, not a file"),
        (tmp_path, "is a folder, not a file"),
        (Path("/dev/null"), "is a device, not a file"),
        (tmp_path / "nowhere" / "x", "cannot be written there"),
        (Path(), "is"),
    ]:
        with pytest.raises(UsageError, match=fact):
            require_places(TensorRTOptions(**{option: path}))  # type: ignore[arg-type]
    require_places(TensorRTOptions(**{option: tmp_path / "new"}))  # type: ignore[arg-type]


def test_plugin_libraries_must_not_take_each_other_s_place_or_the_plan_s(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"two plugin libraries are named lib\.so"):
        require_places(TensorRTOptions(plugins=(tmp_path / "a" / "lib.so", tmp_path / "b" / "lib.so")))
    with pytest.raises(UsageError, match=r"the plugin library model\.plan is not named \*\.so"):
        require_places(TensorRTOptions(plugins=(tmp_path / "model.plan",)))
