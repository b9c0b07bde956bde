"""What a reference may do to `register`: it runs in a process of its own, and takes only that with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.registry import row_counts

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

LENET = ROOT / "examples" / "lenet"
MAIN = "import sys; from modelreg.cli.main import run; sys.exit(run(sys.argv[1:]))"
LINEAR = """
import torch
print("loading the model")
def make():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for temporary files of the commands of a test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


def words(shop: Shop, body: str, *more: str) -> list[str]:
    Path("model.py").write_text(body)
    reference = ["--reference", "model.py:make", "--inputs", str(LENET / "golden-v1.npz")]
    return ["--home", str(shop.path), "register", "lenet", str(LENET / "lenet-v1.onnx"), *reference, *more]


def register(shop: Shop, body: str, *more: str) -> CliResult:
    """Run the command in a process, whose stderr nobody redirects."""
    command = [sys.executable, "-c", MAIN, *words(shop, body, *more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return CliResult(code=done.returncode, out=done.stdout, err=done.stderr)


def ours(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if "modelreg" in path.name or "capture" in path.name]


def require_nothing_registered(shop: Shop, temporary: Path) -> None:
    with shop.database() as database:
        assert not any(row_counts(database).values())
    assert list(shop.storage.iterate_blobs()) == []
    assert ours(temporary) == []


@pytest.mark.parametrize(
    ("body", "more", "fact"),
    [
        ("import ctypes; ctypes.string_at(0)", [], "ended the process (SIGSEGV)"),
        ("import time; time.sleep(100)", ["--timeout", "1.5"], "took longer than 1.5 s and was ended"),
    ],
)
def test_a_reference_that_crashes_leaves_or_hangs_is_one_line_and_nothing_is_registered(
    shop: Shop, temporary: Path, body: str, more: list[str], fact: str
) -> None:
    refused = register(shop, body, *more)
    assert refused.code == 1
    assert f"modelreg: error: the reference {fact}" in refused.err.splitlines()
    assert [line for line in refused.err.splitlines() if "reference" not in line and "hint: " not in line] == []
    assert refused.out == ""
    require_nothing_registered(shop, temporary)


def test_the_registrys_own_limit_holds_where_no_timeout_is_given(shop: Shop, temporary: Path) -> None:
    shop.home.config_path.write_text("[limits]\nbuild_timeout_s = 0.75\n")
    assert "took longer than 0.75 s" in register(shop, "import time; time.sleep(100)").err


def test_what_the_reference_prints_is_in_no_document_and_shown_with_v(shop: Shop, temporary: Path) -> None:
    quiet = register(shop, LINEAR, "--json")
    assert quiet.code == 0, quiet.err
    assert json.loads(quiet.out)["golden_set"]["samples"] > 100
    assert "loading the model" not in quiet.err
    loud = register(shop, LINEAR, "--json", "-v")
    assert json.loads(loud.out)["created"] is False
    assert "loading the model" in loud.err.splitlines()
    failed = register(shop, "print('so far')\nraise LookupError('mine')", "-v")
    assert failed.code == 1
    assert failed.err.index("so far") < failed.err.index("modelreg: error: ")
    assert ours(temporary) == []


def test_an_interrupted_register_takes_the_reference_with_it(shop: Shop, temporary: Path) -> None:
    body = "import os, time\nopen('p', 'w').write(str(os.getpid()))\nos.rename('p', 'pid')\ntime.sleep(100)\n"
    command = [sys.executable, "-c", MAIN, *words(shop, body)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not Path("pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "modelreg: error: interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)
    require_nothing_registered(shop, temporary)


@pytest.mark.parametrize("option", ["--weights", "--inputs", "--golden", "--reference"])
def test_a_pipe_is_refused_and_never_waited_for(shop: Shop, temporary: Path, option: str) -> None:
    os.mkfifo("pipe")
    others = [] if option == "--golden" else words(shop, LINEAR)[5:]
    place = others.index(option) + 1 if option in others else None
    if place is None:
        others += [option, "pipe"]
    else:
        others[place] = "pipe"
    refused = shop.cli("register", "lenet", LENET / "lenet-v1.onnx", *others)
    assert refused.code == 1
    assert "pipe is a named pipe, not a file" in refused.err
    require_nothing_registered(shop, temporary)


def test_a_timeout_belongs_to_a_reference(shop: Shop) -> None:
    refused = shop.cli("register", "lenet", LENET / "lenet-v1.onnx", "--timeout", "3")
    assert refused.code == 2
    assert "--timeout belongs to --reference" in refused.err
