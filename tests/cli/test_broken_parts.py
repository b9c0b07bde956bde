"""What a damaged blob and a toolchain that is gone do to engines that were built."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop
from modelreg_testing.toolchains import pretend_python

LENET = ROOT / "examples" / "lenet"

pytestmark = pytest.mark.slow


@pytest.fixture
def stocked(shop: Shop) -> Shop:
    done = shop.cli("register", "lenet", LENET / "lenet-v1.onnx", "--golden", LENET / "golden-v1.npz")
    assert done.code == 0, done.err
    return shop


def test_a_damaged_engine_is_not_reused_but_healed(stocked: Shop) -> None:
    built = stocked.cli("build", "lenet:1", "--json").document["cells"][0]["engine"]
    blob = next((stocked.path / "store" / "blobs").rglob(built["files"][0]["sha256"]))
    blob.chmod(0o644)
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = stocked.cli("build", "lenet:1", "--json")
    assert again.code == 0, again.err
    assert again.document["cells"][0]["status"] == "built"
    assert "engine 1 is damaged and is built again" in again.err
    assert blob.read_bytes() == data
    assert stocked.cli("build", "lenet:1", "--json").document["cells"][0]["status"] == "reused"


def test_a_toolchain_that_is_gone_takes_no_verdict_away(stocked: Shop, tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {})
    assert stocked.cli("toolchain", "add", "own", "--python", python, "--backend", "onnxruntime").code == 0
    assert stocked.cli("build", "lenet:1", "--toolchain", "own").code == 0
    assert stocked.cli("validate", "lenet:1").code == 0
    python.unlink()
    again = stocked.cli("validate", "lenet:1", "--json")
    assert again.code == 3, again.err
    assert again.document["validations"] == []
    (skipped,) = again.document["skipped"]
    assert skipped["reason"] == f"cannot start the interpreter {python}: No such file or directory"
    assert "1 of 1 engines of lenet:1 cannot be validated on this host: cpu fp32" in again.err
    assert "Error:" not in skipped["reason"]
    promoted = stocked.cli("promote", "lenet:1", "--to", "production")
    assert promoted.code == 0, promoted.err
