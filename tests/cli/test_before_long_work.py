"""What would fail at the end is said at the start, and what was done is told even if something failed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from modelreg.cli import progress, render
from modelreg.registry.engines import list_engines
from modelreg.registry.references import ModelReference
from modelreg.registry.versions import get_version
from modelreg.registry.words import Precision
from modelreg_testing import onnx_models
from modelreg_testing.cli import Shop, save_npz

WORK = {
    "register": ("register", "mlp", "mlp.onnx", "--golden", "golden.npz"),
    "build": ("build", "mlp:1", "--precision", "fp16"),
    "validate": ("validate", "mlp:1"),
}


@pytest.fixture
def stocked(shop: Shop, tmp_path: Path) -> Shop:
    """Give a registry with a version, its FP32 engine, and the files for more in the working directory."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")
    arrays = {"input.x": np.ones((4, 16), np.float32), "output.logits": np.ones((4, 10), np.float32)}
    save_npz(tmp_path / "golden.npz", arrays)
    assert shop.cli(*WORK["register"]).code == 0
    assert shop.cli("build", "mlp").code == 0
    return shop


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Make a folder read-only for everybody, root too; skip where that takes more rights than we have."""
    if subprocess.run(["mount", "--bind", str(place), str(place)], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("words", WORK.values(), ids=WORK)
@pytest.mark.parametrize(("part", "what"), [("", "read-only"), ("store", "read-only file system")])
def test_a_read_only_registry_refuses_work_before_it_begins(
    stocked: Shop, words: tuple[str, ...], part: str, what: str
) -> None:
    with read_only(stocked.path / part):
        refused = stocked.cli(*words)
        assert stocked.cli(*words, "--dry-run").code == 0
        assert stocked.cli("build", "mlp:1").code == 0  # what is there already needs no writing
    assert refused.code == 1
    assert what in refused.err.lower()
    assert " ..." not in refused.err  # no step was begun


@pytest.mark.parametrize("words", WORK.values(), ids=WORK)
def test_a_database_that_a_writer_keeps_is_said_before_work_begins(stocked: Shop, words: tuple[str, ...]) -> None:
    (stocked.path / "config.toml").write_text("[limits]\nlock_timeout_s = 0.2\n")
    with stocked.database() as database, database.write():
        refused = stocked.cli(*words)
    assert refused.code == 4
    assert "stayed locked" in refused.err
    assert " ..." not in refused.err


def block_variant(shop: Shop) -> None:
    """Put a folder in the place of the FP16 variant in the store, which the next build of it makes and stores again."""
    with shop.database() as database, database.read() as connection:
        version = get_version(connection, ModelReference(model="mlp"))
        digest = next(e for e in list_engines(connection, version_id=version.id) if e.precision == Precision.FP16)
    path = shop.path / "store" / "blobs" / "sha256" / digest.variant_digest[:2] / digest.variant_digest
    path.unlink()
    path.mkdir()


@pytest.mark.slow
def test_a_cell_that_the_store_fails_does_not_hide_the_others(stocked: Shop) -> None:
    assert stocked.cli("build", "mlp", "--precision", "fp16").code == 0
    block_variant(stocked)
    words = ("build", "mlp", "--precision", "fp16,fp32", "--rebuild")
    shown = stocked.cli(*words)
    assert shown.code == 1
    assert "is a directory" in shown.err.lower()
    assert [line.split()[2:4] for line in shown.out.splitlines()[1:3]] == [["fp16", "failed"], ["fp32", "built"]]
    assert "1 of 2 engines were not built: fp16 for cpu" in shown.err
    cells = stocked.cli(*words, "--json").document["cells"]
    assert [cell["status"] for cell in cells] == ["failed", "built"]
    assert cells[0]["attempt"] is not None


@pytest.mark.slow
def test_a_database_that_fails_in_the_middle_does_not_hide_the_others(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stocked.path / "config.toml").write_text("[limits]\nlock_timeout_s = 0.2\n")
    database = stocked.database()
    writer = database.write()
    steps = iter((lambda: None, writer.__enter__))
    told = render.print_note

    def print_note(text: str) -> None:
        next(steps)()  # somebody begins to write when the second cell begins, and does not end
        told(text)

    monkeypatch.setattr(progress, "print_note", print_note)
    shown = stocked.cli("build", "mlp", "--precision", "fp32,fp16", "--rebuild")
    writer.__exit__(None, None, None)
    database.close()
    assert shown.code == 4
    assert [line.split()[2:4] for line in shown.out.splitlines()[1:3]] == [["fp32", "built"], ["fp16", "failed"]]
    (replaced,) = shown.out.splitlines()[3:]
    assert re.fullmatch(
        r"engine \d+ stands in the place of engine \d+ \(same recipe\) and has no verdict yet: validate it", replaced
    )
    assert "stayed locked" in shown.err
