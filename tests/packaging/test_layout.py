"""The folders of the tree and the packages that pyproject.toml installs are the same."""

from __future__ import annotations

import ast

from modelreg_testing.checkout import ROOT, listed_packages, needs_checkout, package_folders, read_pyproject

pytestmark = needs_checkout


def test_every_folder_with_an_init_is_listed_and_nothing_else_is() -> None:
    assert sorted(listed_packages()) == sorted(package_folders())


def test_every_listed_package_is_mapped_to_its_own_folder() -> None:
    mapped = read_pyproject()["tool"]["setuptools"]["package-dir"]
    assert mapped == {name: folder.relative_to(ROOT).as_posix() for name, folder in package_folders().items()}


def test_the_namespace_has_no_folder_of_its_own() -> None:
    assert not (ROOT / "modelreg").exists()


def test_every_top_level_package_says_that_it_is_typed() -> None:
    untyped = [
        name
        for name, folder in package_folders().items()
        if folder.parent == ROOT and not (folder / "py.typed").is_file()
    ]
    assert untyped == []


def test_no_module_has_the_name_of_a_library_that_it_imports() -> None:
    shadowing = [
        path.relative_to(ROOT).as_posix()
        for folder in package_folders().values()
        for path in folder.glob("*.py")
        if path.stem in _imported_libraries(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert shadowing == []


def test_the_packages_call_each_other_by_their_installed_names_alone() -> None:
    own = {folder.name for folder in package_folders().values() if folder.parent == ROOT}
    bare = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in package_folders().values()
        for path in folder.glob("*.py")
        for name in _imported_libraries(ast.parse(path.read_text(encoding="utf-8"))) & own
    ]
    assert bare == []


def _imported_libraries(tree: ast.Module) -> set[str]:
    """Return the first part of every absolute import."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
