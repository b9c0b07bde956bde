from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from modelreg.registry.errors import ConflictError
from modelreg.runtime.staging import move_into_place, staged_folder


def test_a_folder_that_got_no_name_is_gone(tmp_path: Path) -> None:
    with staged_folder(tmp_path) as folder:
        (folder / "half").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_got_its_name_stays(tmp_path: Path) -> None:
    with staged_folder(tmp_path) as folder:
        (folder / "whole").write_text("x")
        move_into_place(folder, tmp_path / "name")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_a_name_that_is_taken_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "theirs").write_text("x")
    with staged_folder(tmp_path) as folder, pytest.raises(ConflictError):
        move_into_place(folder, tmp_path / "name")
    assert [path.name for path in (tmp_path / "name").iterdir()] == ["theirs"]


def test_what_a_killed_export_left_is_removed_and_what_one_at_work_has_is_not(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from modelreg.runtime.staging import staged_folder
        with staged_folder(Path(sys.argv[1])) as folder:
            (folder / "half").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    with staged_folder(tmp_path) as mine:
        assert not left.exists()
        with staged_folder(tmp_path):
            assert mine.exists()
