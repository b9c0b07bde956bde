from __future__ import annotations

import os
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.errors import GoldenSetError, MissingDependencyError, ReferenceModelError, UsageError
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.validators import reference_capture
from modelreg.validators.reference_capture import capture_reference, check_capture
from modelreg_testing.golden import signature, spec

pytestmark = pytest.mark.slow

torch: Any = pytest.importorskip("torch")

PAIR = signature([spec("x", ("N", 3))], [spec("y", ("N", 2))])
GOOD = """
import os, sys, torch
import beside

print("loading", file=sys.stderr)
print("on stdout")

class Net(torch.nn.Module):
    def forward(self, x):
        open("ran", "w").write(f"{os.getpid()} {os.getcwd()} {os.environ.get('FROM_OUTSIDE')}")
        return x[:, :2] * beside.FACTOR
"""


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("inputs.npz", x=np.arange(18, dtype=np.float32).reshape(6, 3))


def capture(body: str, name: str = "Net", **more: Any) -> Any:
    Path("user.py").write_text(textwrap.dedent(body))
    options: dict[str, Any] = {"weights": None, "seed": 0, "activations": None, "inputs": "inputs.npz"} | more
    return capture_reference(
        reference=f"user.py:{name}", signature=PAIR, destination=Path("golden.safetensors").absolute(), **options
    )


def refuse(body: str, match: str, kind: type[Exception] = ReferenceModelError, **more: Any) -> Any:
    before = {*Path().iterdir(), Path("user.py"), Path("__pycache__")}
    with pytest.raises(kind, match=match) as caught:
        capture(body, **more)
    assert "\n" not in str(caught.value)
    assert set(Path().iterdir()) <= before
    return caught.value


def test_a_reference_runs_in_another_process_from_here_with_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "yes")
    Path("beside.py").write_text("FACTOR = 3\n")
    seen: list[int] = []
    origin = capture(GOOD, batch=4, progress=seen.append, log_path=tmp_path / "log")
    assert seen == [4, 2]
    assert (origin["samples"], origin["batch"], origin["kind"]) == (6, 4, "module")
    assert origin["reference"]["file"] == "user.py"
    with open_tensor_set(Path("golden.safetensors")) as golden:
        np.testing.assert_array_equal(golden.read("output.y"), golden.read("input.x")[:, :2] * 3)
    pid, folder, outside = Path("ran").read_text().split()
    assert int(pid) != os.getpid()
    assert (Path(folder), outside) == (tmp_path, "yes")
    assert {"loading", "on stdout"} <= set(Path("log").read_text().splitlines())
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.glob(".capture*"))
    refuse(GOOD, "File exists", GoldenSetError)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("import os; os._exit(0)", r"^the reference ended the process \(exit code 0\)$"),
        ("import ctypes; ctypes.string_at(0)", r"^the reference ended the process \(SIGSEGV\)$"),
        ("raise KeyboardInterrupt", r"\(SIGINT\)$"),
        ("import os\nfor fd in range(3, 60):\n try: os.write(fd, b'x\\n')\n except OSError: pass", "disturbed"),
    ],
)
def test_a_reference_that_ends_the_process_is_one_line(body: str, match: str) -> None:
    assert "-v" in refuse(body, match).hint()


def test_a_process_that_is_survived_by_what_it_started_is_seen_to_be_dead() -> None:
    began = time.monotonic()
    body = "import os, time\nif not os.fork():\n    time.sleep(100)\nos._exit(3)\n"
    refuse(body, r"ended the process \(exit code 3\)", timeout_s=60)
    assert time.monotonic() - began < 30


def test_a_reference_that_closes_every_file_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelreg.registry.toolchains.process._CLOSE_TIMEOUT_S", 0.2)
    refuse("import os, time\nos.closerange(3, 200)\ntime.sleep(100)", "^the reference closed the files that")


def test_a_reference_that_hangs_or_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refuse("import time; time.sleep(100)", r"^the reference took longer than 0\.5 s", timeout_s=0.5)
    assert "--timeout" in error.hint()
    monkeypatch.setattr("modelreg.registry.toolchains.process.MAX_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(reference_capture, "MAX_LOG_BYTES", 1 << 20)
    refuse("while True: print('spam' * 10000)", "^the reference printed more than 1 MiB and was ended$")


def test_errors_come_back_as_they_were_raised() -> None:
    error = refuse("def make():\n    raise OSError('no weights')\n", "OSError: no weights .*user.py:2", name="make")
    assert error.hint() == ""
    assert "FILE.py:NAME" in refuse("", "has no function 'Net'").hint()
    np.savez("other.npz", z=np.zeros((2, 3), np.float32))
    Path("beside.py").write_text("FACTOR = 3\n")
    hint = refuse(GOOD, "lacks the model's input 'x'", GoldenSetError, inputs="other.npz").hint()
    assert "Name the arrays" in hint


def test_a_pytorch_that_cannot_be_imported_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('libcudart')\n")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    error = refuse("", "PyTorch is not installed", MissingDependencyError)
    assert "modelreg[torch]" in error.hint()


def test_what_is_a_fault_of_ours_is_one_line_too() -> None:
    body = """
    import torch
    class Net(torch.nn.Module):
        def named_modules(self, *args, **kwargs):
            raise LookupError("mine\\nand more")
        def forward(self, x):
            return x[:, :2]
    """
    error = refuse(body, "the reference failed: LookupError: mine and more", activations=(("all",), 1 << 20))
    assert "-v" in error.hint()


def test_ctrl_c_ends_the_reference(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(_samples: int) -> None:
        raise Stop

    body = """
    import os, time, torch
    class Net(torch.nn.Module):
        runs = 0
        def forward(self, x):
            if not Net.runs: open("pid", "w").write(str(os.getpid()))
            Net.runs += 1
            if Net.runs > 2: time.sleep(100)
            return x[:, :2]
    """
    with pytest.raises(Stop):
        capture(body, batch=2, progress=stop)
    assert not Path(f"/proc/{Path('pid').read_text()}").exists()
    assert not list(tmp_path.glob(".capture*"))


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda p: fifo(p / "pipe"), "pipe is a named pipe, not a file"),
        (lambda _: "/dev/zero", "/dev/zero is a device, not a file"),
        (str, "is a folder, not a file"),
        (lambda p: str(p / "none"), "is not a file: nothing is there"),
    ],
)
def test_what_is_no_regular_file_is_never_opened(tmp_path: Path, make: Callable[[Path], str], match: str) -> None:
    odd = make(tmp_path)
    Path("user.py").touch()
    for reference, weights, inputs in [
        ("user.py:Net", None, odd),
        ("user.py:Net", Path(odd), "inputs.npz"),
        (odd, None, "inputs.npz"),
    ]:
        with pytest.raises(ReferenceModelError, match=match):
            check_capture(reference=reference, weights=weights, inputs=inputs)
    refuse("", match, inputs=odd)


def test_a_function_must_be_named_and_the_folder_be_there() -> None:
    Path("user.py").touch()
    with pytest.raises(UsageError, match="names no factory"):
        check_capture(reference="user.py", weights=None, inputs="inputs.npz")
    with pytest.raises(GoldenSetError, match="cannot be written"):
        capture_reference(
            reference="user.py:Net",
            weights=None,
            inputs="inputs.npz",
            signature=PAIR,
            seed=0,
            activations=None,
            destination=Path("none/golden").absolute(),
        )


def test_a_damaged_exported_program_says_one_line_and_torch_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(4, 3),)), tmp_path / "m.pt2")
    whole = (tmp_path / "m.pt2").read_bytes()
    assert b'"schema_version"' in whole
    (tmp_path / "m.pt2").write_bytes(whole.replace(b'"schema_version"', b'"schema_versiom"'))
    capfd.readouterr()
    with pytest.raises(ReferenceModelError, match="is not an exported program: ") as caught:
        capture_reference(
            reference="m.pt2",
            weights=None,
            inputs="inputs.npz",
            signature=PAIR,
            seed=0,
            activations=None,
            destination=tmp_path / "golden",
        )
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
