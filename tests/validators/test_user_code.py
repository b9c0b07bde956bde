from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from modelreg.registry.errors import ReferenceModelError
from modelreg.validators.user_code import guard, load_function, split_target


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refuse(path: Path, match: str, name: str = "make") -> ReferenceModelError:
    with pytest.raises(ReferenceModelError, match=match) as caught, load_function(path, name):
        raise AssertionError
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_target_is_a_python_file_and_a_name() -> None:
    assert split_target("a/b.py:make") == (Path("a/b.py"), "make")
    assert split_target("C:/x:y/b.py:make") == (Path("C:/x:y/b.py"), "make")
    assert split_target("model.pt") is None
    assert split_target("inputs.npz") is None
    assert split_target("b.py") is None


def test_a_function_is_found_and_files_beside_it_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path / "beside.py", "VALUE = 42\n")
    path = write(tmp_path / "user.py", "import beside\n\ndef make():\n    return beside.VALUE\n")
    with load_function(path, "make") as make:
        assert make() == 42
    assert str(tmp_path) not in sys.path
    assert "beside" not in sys.modules


def test_two_folders_with_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "beside.py", f"VALUE = {folder!r}\n")
        path = write(tmp_path / folder / "user.py", "import beside\n\ndef make():\n    return beside.VALUE\n")
        with load_function(path, "make") as make:
            assert make() == folder


def test_a_file_that_is_missing_broken_or_without_the_function_is_one_line(tmp_path: Path) -> None:
    assert "FILE.py:NAME" in refuse(tmp_path / "none.py", "is not a file").hint()
    os.mkfifo(tmp_path / "pipe.py")
    refuse(tmp_path / "pipe.py", "is a named pipe, not a file")
    refuse(write(tmp_path / "a.py", "x = 1\n"), "has no function 'make'")
    refuse(write(tmp_path / "b.py", "make = 1\n"), "has no function 'make'")
    refuse(write(tmp_path / "c.py", "\n\ndef make(:\n"), r"cannot be imported: SyntaxError: .* \(.*c\.py:3\)")
    refuse(write(tmp_path / "d.py", "import not_there_at_all\n"), r"ModuleNotFoundError: .* \(.*d\.py:1\)")
    refuse(write(tmp_path / "e.py", "import sys\nsys.exit(3)\n"), r"SystemExit: 3 \(.*e\.py:2\)")


def test_the_line_named_is_the_users_and_the_message_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "user.py", "import json\n\ndef make():\n    return json.loads('{')\n")
    with load_function(path, "make") as make, pytest.raises(ReferenceModelError) as caught, guard("it failed"):
        make()
    assert str(caught.value).startswith("it failed: JSONDecodeError: ")
    assert str(caught.value).endswith("user.py:4)")
    with pytest.raises(ReferenceModelError, match=r"^it failed: ValueError: one \(") as caught, guard("it failed"):
        raise ValueError("\none\ntwo")
    with pytest.raises(ReferenceModelError, match=r"^it failed: ValueError \("), guard("it failed"):
        raise ValueError


def test_an_exception_may_be_as_broken_as_the_code_that_raised_it(tmp_path: Path) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise LookupError

    with pytest.raises(ReferenceModelError, match=r"^it failed: OddError \("), guard("it failed"):
        raise OddError
    (tmp_path / "loop").symlink_to("loop")
    code = compile("1 / 0", str(tmp_path / "loop" / "a.py"), "exec")  # generated code may say that it is anywhere
    with pytest.raises(ReferenceModelError, match=r"^it failed: ZeroDivisionError"), guard("it failed"):
        exec(code, {})
    odd = SyntaxError("odd")
    odd.filename = b"bytes"  # type: ignore[assignment]
    with pytest.raises(ReferenceModelError, match=r"^it failed: SyntaxError: odd"), guard("it failed"):
        raise odd


def test_ctrl_c_and_our_own_errors_go_through() -> None:
    with pytest.raises(KeyboardInterrupt), guard("it failed"):
        raise KeyboardInterrupt
    with pytest.raises(ReferenceModelError, match=r"^mine$"), guard("it failed"):
        raise ReferenceModelError("mine")


def test_what_user_code_prints_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    with guard("it failed"):
        print("loading")  # noqa: T201 - the point of the test
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\n")


def test_an_error_inside_this_program_alone_has_no_line() -> None:
    def fail() -> None:
        exec(compile("1 / 0", "<string>", "exec"), {})

    with pytest.raises(ReferenceModelError, match="ZeroDivisionError"), guard("it failed"):
        fail()
