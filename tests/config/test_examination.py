from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.config.examination import ConfigProblem, examine_policies, examine_settings
from modelreg.config.settings import Home, create_home

RULE = '[[rules]]\nmetric = "cosine"\nlimit = 0.999\n'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return create_home(tmp_path)


def write(home: Home, name: str, text: str = RULE) -> Path:
    path = home.policies_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def examine(home: Home) -> list[ConfigProblem]:
    return examine_policies(home, models=["lenet"])


def test_a_new_home_is_sound(home: Home) -> None:
    assert examine_settings(home) is None
    assert examine(home) == []


def test_policies_that_are_in_force_are_sound(home: Home) -> None:
    write(home, "fp16.toml")
    write(home, "lenet/int8.toml")
    write(home, "default.toml")
    write(home, "@production/int8.toml")
    write(home, "lenet/@production/default.toml")
    write(home, "README.md", "why we are strict")
    assert examine(home) == []


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("int8.toml", "rules = [", "not valid TOML", "refuse"),
        ("lenet/int8.toml", '[[rules]]\nmetric = "cosin"\nlimit = 1\n', "'cosin' is unknown", "Known: max_abs"),
        ("int88.toml", RULE, "is never read", "int8.toml"),
        ("int8.TOML", RULE, "is never read", "int8.toml"),
        ("lenet/INT8.toml", RULE, "is never read", "int8.toml"),
        ("best.toml", RULE, "is never read", "fp16"),
        ("lenett/int8.toml", RULE, "there is no model 'lenett'", "Did you mean 'lenet'?"),
        ("vgg/int8.toml", RULE, "there is no model 'vgg'", "Rename the folder"),
        ("lenet/int8/int8.toml", RULE, "is never read", "Remove it"),
        ("@production/lenet/int8.toml", RULE, "is never read", "Remove it"),
        ("@Prod/int8.toml", RULE, "no channel can have this name", "@CHANNEL"),
        ("lenet/@production/int88.toml", RULE, "is never read", "default.toml"),
        ("default.toml", 'precision = "int8"\n' + RULE, "is for every precision", "Leave precision out"),
    ],
)
def test_what_is_wrong_or_never_read_is_named_with_advice(
    home: Home, name: str, text: str, message: str, hint: str
) -> None:
    write(home, name, text)
    (problem,) = examine(home)
    assert message in problem.message
    assert hint in problem.hint
    assert f"policies/{name}".startswith(problem.subject)


def test_a_dangling_link_is_a_problem(home: Home) -> None:
    home.policies_path.mkdir()
    (home.policies_path / "int8.toml").symlink_to("/nowhere/int8.toml")
    (problem,) = examine(home)
    assert "cannot read" in problem.message


def test_a_folder_that_cannot_be_listed_is_a_problem(home: Home) -> None:
    home.policies_path.write_text("no folder")
    (problem,) = examine(home)
    assert "cannot be read: Not a directory" in problem.message


def test_without_a_list_of_models_every_folder_may_be_one(home: Home) -> None:
    write(home, "vgg/int8.toml")
    write(home, "vgg/int88.toml")
    (problem,) = examine_policies(home, models=None)
    assert problem.subject == "policies/vgg/int88.toml"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[limits]\nlock_timeout = 1\n", "unknown key 'lock_timeout'", "lock_timeout_s"),
        ("[limits]\nlock_timeout_s = 0\n", "above 0", "Correct it."),
        ("[channels.Production]\n", "Production", ""),
        ("not toml", "not valid TOML", "Correct it."),
    ],
)
def test_settings_that_are_not_understood_are_a_problem(home: Home, text: str, message: str, hint: str) -> None:
    home.config_path.write_text(text)
    problem = examine_settings(home)
    assert problem is not None
    assert problem.subject == "config.toml"
    assert message in problem.message
    assert hint in problem.hint
