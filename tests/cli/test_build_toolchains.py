"""What `build` does about toolchains that cannot be used any more: another one builds, or the plan says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.cli import Shop
from modelreg_testing.toolchains import pretend_backend, pretend_python

MODULE = pretend_backend("1.7.1.116", targets=(89, 120))
PLAN = ("build", "lenet:1", "--target", "sm_89", "--dry-run")


@pytest.fixture
def two(shop: Shop, tmp_path: Path) -> Shop:
    """Two toolchains of one version; `rtxb` is what is chosen."""
    shop.add_version()
    for name in ("rtx17", "rtxb"):
        python = pretend_python(tmp_path / name, {"tensorrt_rtx": MODULE})
        assert shop.cli("toolchain", "add", name, "--python", python).code == 0
    return shop


def uninstall(folder: Path) -> None:
    """Leave what pip may leave: an interpreter without the backend, and a folder that is no module."""
    (folder / "python-modules" / "tensorrt_rtx.py").unlink()
    python = folder / "python"
    # The module that the test's own interpreter has must not be found.
    python.write_text(python.read_text().replace('"$@"', '-S "$@"'))
    (folder / "python-modules" / "tensorrt_rtx").mkdir()


def chosen(shop: Shop, *words: str) -> list[tuple[str, str]]:
    return [(cell["toolchain"], cell["action"]) for cell in shop.cli(*PLAN, *words, "--json").document["cells"]]


def test_the_one_that_lost_its_backend_gives_way(two: Shop, tmp_path: Path) -> None:
    assert chosen(two) == [("rtxb", "build")]
    uninstall(tmp_path / "rtxb")
    told = two.cli(*PLAN)
    assert told.code == 0, told.err
    assert "would build fp32 for sm_89 with rtx17" in told.out
    assert told.err.count("warning: toolchain rtxb cannot be used and is passed over (tensorrt-rtx is not") == 1
    assert chosen(two, "--target", "sm_120") == [("rtx17", "build"), ("rtx17", "build")]


def test_the_one_whose_interpreter_is_gone_gives_way(two: Shop, tmp_path: Path) -> None:
    (tmp_path / "rtxb" / "python").unlink()
    assert chosen(two) == [("rtx17", "build")]


def test_where_none_is_left_the_plan_refuses_and_so_does_the_build(two: Shop, tmp_path: Path) -> None:
    for name in ("rtxb", "rtx17"):
        (tmp_path / name / "python").unlink()
    for words in (PLAN, PLAN[:-1]):
        told = two.cli(*words)
        assert told.code == 1
        said = told.out + told.err
        assert f"toolchain rtxb cannot be used: there is no interpreter {tmp_path}/rtxb/python" in said
        assert "`modelreg toolchain list` shows" in told.err
        assert "`modelreg toolchain add NAME --python PATH`" in told.err
        assert "`modelreg toolchain remove rtxb`" in told.err
    assert {each["target"] for each in two.cli("show", "lenet:1", "--json").document["engines"]} == {"cpu"}


def test_one_that_is_named_is_refused_beside_one_that_is_not(two: Shop, tmp_path: Path) -> None:
    (tmp_path / "rtxb" / "python").unlink()
    assert chosen(two, "--toolchain", "rtxb,rtx17") == [("rtxb", "refuse"), ("rtx17", "build")]
    assert chosen(two, "--toolchain", "rtxb") == [("rtxb", "refuse")]


@pytest.mark.parametrize("fault", ["raise ImportError('libcudart.so.13: no')", "raise OSError('libfoo.so: no')"])
def test_a_backend_that_breaks_where_it_is_imported_is_named_by_its_toolchain(
    two: Shop, tmp_path: Path, fault: str
) -> None:
    (tmp_path / "rtxb" / "python-modules" / "tensorrt_rtx.py").write_text(fault)
    built = two.cli("build", "lenet:1", "--target", "sm_89")
    assert built.code == 1
    assert "TensorRT-RTX cannot be imported in " in built.err
    assert "It is toolchain rtxb: `modelreg toolchain list` shows whether it can be used." in built.err


def test_a_name_that_nobody_added_is_held_to_all_there_are(two: Shop) -> None:
    refused = two.cli(*PLAN, "--toolchain", "rtx7")
    assert refused.code == 1
    assert "there is no toolchain 'rtx7'" in refused.err
    assert "Did you mean 'rtx17', 'rtxb'?" in refused.err
    assert "There are: onnxruntime, rtx17, rtxb;" in refused.err


def test_what_builds_on_workers_is_not_looked_for_here(two: Shop, tmp_path: Path) -> None:
    (tmp_path / "rtxb" / "python").unlink()
    assert chosen(two, "--executor", "dask://127.0.0.1:9") == [("rtxb", "build")]
