"""What `python -m build` makes: the wheel, by way of the sdist, holds all of the packages and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import pytest

from modelreg.cli import main
from modelreg_testing.checkout import ROOT, needs_checkout, package_folders

DATA = {".css", ".json", ".toml", ".typed"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist and the wheel of a copy of the tree, so that nothing is left in the tree."""
    tree = tmp_path_factory.mktemp("tree")
    tops = [folder.name for folder in package_folders().values() if folder.parent == ROOT]
    for name in [*tops, "tests", "examples"]:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, tree / name)
    build = [sys.executable, "-m", "build", "--no-isolation", str(tree)]
    finished = subprocess.run(build, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel_files(built: Path) -> set[PurePosixPath]:
    """Return the names of all files in the wheel."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist()}


@needs_checkout
@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file_of_the_packages(wheel_files: set[PurePosixPath]) -> None:
    expected = {
        PurePosixPath(*package.split("."), path.name)
        for package, folder in package_folders().items()
        for path in folder.iterdir()
        if path.suffix == ".py" or path.suffix in DATA
    }
    assert {path for path in wheel_files if path.parts[0] == "modelreg"} == expected
    assert any(path.match("modelreg/config/policies/*.toml") for path in expected)
    assert any(path.match("modelreg/migrations/versions/[!_]*.py") for path in expected)


@needs_checkout
@pytest.mark.slow
def test_the_wheel_installs_nothing_beside_the_namespace(wheel_files: set[PurePosixPath]) -> None:
    tops = {path.parts[0].partition("-")[0] for path in wheel_files}
    assert tops == {"modelreg"}
    assert PurePosixPath("modelreg/__init__.py") not in wheel_files


@needs_checkout
@pytest.mark.slow
def test_the_wheel_carries_the_licence(wheel_files: set[PurePosixPath]) -> None:
    assert [path.parts[-2:] for path in wheel_files if path.name == "LICENSE"] == [("licenses", "LICENSE")]


@needs_checkout
@pytest.mark.slow
def test_the_sdist_can_be_built_from_without_the_checkout(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    assert names >= {PurePosixPath(name) for name in ["pyproject.toml", "README.md", "LICENSE", "cli/version.py"]}


@pytest.mark.skipif(bool(package_folders()), reason="an editable install has no files of its own")
def test_the_installed_wheel_keeps_to_the_namespace_and_is_what_the_tests_import() -> None:
    files = distribution("modelreg").files or []
    strangers = [
        str(file)
        for file in files
        if file.parts[0] != "modelreg" and ".dist-info" not in file.parts[0] and file.name != "modelreg"
    ]
    assert strangers == []
    assert Path(main.__file__) in {Path(str(file.locate())) for file in files}
