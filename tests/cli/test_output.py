"""What a command says when its own words cannot be written: the work stands, and the exit code tells the truth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modelreg_testing.cli import Shop

FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


def run_into(shop: Shop, *words: str, out: Path, err: Path) -> int:
    command = [sys.executable, "-m", "modelreg.cli", "--home", str(shop.path), *words]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.run(command, stdout=stdout, stderr=stderr, check=False).returncode


@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["lines", "document"])
def test_a_result_that_cannot_be_printed_is_told_apart_from_work_that_failed(
    shop: Shop, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    shop.add_version()
    code = run_into(shop, "promote", "lenet:1", "--to", "production", *extra, out=FULL, err=tmp_path / "err")
    told = (tmp_path / "err").read_text()
    assert code == 1
    assert "modelreg: error: the result could not be printed to standard output: No space left on device" in told
    assert "What the command did stands" in told
    assert "Traceback" not in told
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None


def test_notes_that_cannot_be_written_stop_nobody(shop: Shop, tmp_path: Path) -> None:
    shop.add_version()
    assert run_into(shop, "promote", "lenet:1", "--to", "production", out=tmp_path / "out", err=FULL) == 0
    assert "generation 1" in (tmp_path / "out").read_text()


def test_an_error_that_cannot_be_written_keeps_its_exit_code(shop: Shop) -> None:
    shop.add_version()
    words = ("promote", "lenet:1", "--to", "production", "--expect-current", "7")
    assert run_into(shop, *words, out=FULL, err=FULL) == 4
