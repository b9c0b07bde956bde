from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from modelreg.config.layers import Origin, OriginKind, Resolved, locate_origin, resolve
from modelreg.config.settings import Home, create_home, load_settings
from modelreg.registry.errors import ConfigError, InvalidReferenceError, UsageError
from modelreg.registry.words import Precision

KEY = "limits.lock_timeout_s"


def resolved(
    path: Path | None = None, *, environment: Mapping[str, str] | None = None, flags: Iterable[tuple[str, str]] = ()
) -> Resolved:
    return resolve(path, environment=environment or {}, flags=flags)


def with_file(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_flag_goes_before_a_variable_before_the_file_before_the_default(tmp_path: Path) -> None:
    path = with_file(tmp_path, "[limits]\nlock_timeout_s = 2")
    variable = {"MODELREG_LIMITS_LOCK_TIMEOUT_S": "3"}
    flag = [(KEY, "4"), (KEY, "5")]
    steps: list[tuple[dict[str, Any], float, Origin]] = [
        ({}, 30.0, Origin(kind=OriginKind.DEFAULT)),
        ({"path": path}, 2.0, Origin(kind=OriginKind.FILE, place=str(path))),
        (
            {"path": path, "environment": variable},
            3.0,
            Origin(kind=OriginKind.VARIABLE, place="MODELREG_LIMITS_LOCK_TIMEOUT_S"),
        ),
        ({"path": path, "environment": variable, "flags": flag}, 5.0, Origin(kind=OriginKind.FLAG, place="--set")),
    ]
    for given, value, origin in steps:
        found = resolved(**given)
        assert (found.values[KEY], found.origins[KEY]) == (value, origin)
        assert found.values["limits.build_timeout_s"] == 3600.0
        assert found.origins["limits.build_timeout_s"].kind is OriginKind.DEFAULT


@pytest.mark.parametrize("weaker", ["variable", "file"])
def test_a_flag_beats_each_of_the_others_alone(tmp_path: Path, weaker: str) -> None:
    path = with_file(tmp_path, "[limits]\nlock_timeout_s = 2") if weaker == "file" else None
    environment = {"MODELREG_LIMITS_LOCK_TIMEOUT_S": "3"} if weaker == "variable" else {}
    assert resolved(path, environment=environment, flags=[(KEY, "9")]).values[KEY] == 9.0


def test_lists_are_words_with_commas_between_them(tmp_path: Path) -> None:
    environment = {
        "MODELREG_SERVE_PYTHON": "/opt/a, python3.10",
        "MODELREG_PROMOTE_PREFERENCE_SM_90": "fp16,fp32",
        "MODELREG_CHANNELS_PRODUCTION_TARGETS": "cpu,sm_90",
    }
    settings = load_settings(None, environment=environment, flags=[("plugins.allowed", "")])
    assert settings.serve_python == ("/opt/a", "python3.10")
    assert settings.preference_for("sm_90") == (Precision.FP16, Precision.FP32)
    assert settings.preference_for("cpu")[0] is Precision.INT8
    assert settings.channel_targets("production") == ("cpu", "sm_90")
    assert settings.allowed_plugins == ()


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    assert resolved(environment={"MODELREG_STORE_URL": ""}).values["store.url"] == "store"


def test_a_channel_of_the_file_is_meant_by_a_variable_that_cannot_spell_it(tmp_path: Path) -> None:
    path = with_file(tmp_path, '[channels."eu-west.1"]\ntargets = ["cpu"]')
    found = resolved(path, environment={"MODELREG_CHANNELS_EU_WEST_1_TARGETS": "sm_90"})
    assert {name: value for name, value in found.values.items() if name.startswith("channels.")} == {
        "channels.eu-west.1.targets": ("sm_90",)
    }


def test_a_variable_that_sets_nothing_is_left_alone() -> None:
    assert resolved(environment={"MODELREG_STORE_UR": "x"}).values["store.url"] == "store"


@pytest.mark.parametrize(
    ("variable", "text", "fact"),
    [
        ("MODELREG_LIMITS_LOCK_TIMEOUT_S", "soon", "limits.lock_timeout_s must be a number of seconds above 0, found"),
        ("MODELREG_LIMITS_LOCK_TIMEOUT_S", "0", "above 0, found 0.0"),
        ("MODELREG_LIMITS_LOCK_TIMEOUT_S", "nan", "above 0, found nan"),
        ("MODELREG_PROMOTE_PREFERENCE_CPU", "fp12", "promote.preference.cpu has an unknown precision"),
        ("MODELREG_SERVE_PYTHON", "a,,b", "serve.python must be a list of names"),
        ("MODELREG_DATABASE_URL", "mysql://ada:secret@db/x", "database.url: 'mysql' is no kind of database"),
        ("MODELREG_DATABASE_URL", "postgresql://ada:sec/ret@db/x", "cannot be read"),
    ],
)
def test_a_bad_value_is_one_line_that_names_its_origin_and_its_key(variable: str, text: str, fact: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(environment={variable: text})
    assert str(caught.value).startswith(f"{variable}: ")
    assert fact in str(caught.value)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value)
    assert "ret@" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_value_of_the_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = with_file(tmp_path, "# first\n\n[limits]\nbuild_timeout_s = 5\nlock_timeout_s = 'x'\n")
    with pytest.raises(ConfigError) as caught:
        resolved(path)
    assert str(caught.value).startswith(f"{path}:5: limits.lock_timeout_s must be")


def test_a_bad_value_that_a_better_one_replaces_harms_nobody(tmp_path: Path) -> None:
    path = with_file(tmp_path, "[limits]\nlock_timeout_s = 'x'\n")
    assert resolved(path, flags=[(KEY, "1")]).values[KEY] == 1.0


@pytest.mark.parametrize(
    ("flag", "fact", "hint"),
    [
        (("limits.lock_timeout", "1"), "--set: there is no setting 'limits.lock_timeout'", "'limits.lock_timeout_s'"),
        (("x", "1"), "--set: there is no setting 'x'", "modelreg config show"),
        ((KEY, "x"), "--set: limits.lock_timeout_s must be", ""),
    ],
)
def test_a_bad_flag_is_a_usage_error(flag: tuple[str, str], fact: str, hint: str) -> None:
    with pytest.raises(UsageError, match=fact) as caught:
        resolved(flags=[flag])
    assert hint in caught.value.hint()


def test_a_channel_that_may_not_be_named_so_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(InvalidReferenceError):
        resolved(flags=[("channels.Production.targets", "cpu")])


def test_the_line_of_an_origin_is_found_in_the_file(tmp_path: Path) -> None:
    path = with_file(tmp_path, "\n[store]\nurl = 'x'\n")
    found = resolved(path)
    assert locate_origin(found.origins["store.url"], "store.url") == (str(path), 3)
    assert locate_origin(found.origins[KEY], KEY) == ("", None)
    path.unlink()
    assert locate_origin(found.origins["store.url"], "store.url") == (str(path), None)


def test_a_home_reads_the_environment_and_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = create_home(tmp_path)
    monkeypatch.setenv("MODELREG_DATABASE_URL", "other.db")
    assert Home(home.path).database_path == tmp_path / "other.db"
    assert Home(home.path, (("database.url", "sqlite:////srv/registry.db"),)).database_path == Path("/srv/registry.db")
    server = Home(home.path, (("database.url", "postgresql://db/x"),))
    assert (server.database_path, server.database_url) == (None, "postgresql://db/x")


def test_a_config_with_a_password_is_closed_to_others(tmp_path: Path) -> None:
    secret = create_home(tmp_path / "a", database_url="postgresql://ada:secret@db/models")
    assert secret.config_path.stat().st_mode & 0o077 == 0
    assert secret.settings.database_url == "postgresql://ada:secret@db/models"
    plain = create_home(tmp_path / "b", database_url="postgresql://ada@db/models")
    assert plain.settings.database_url == "postgresql://ada@db/models"
