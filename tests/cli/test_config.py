from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelreg.config.keys import KEYS, find_key, variable_of
from modelreg_testing.cli import Shop, run_cli


@pytest.fixture
def configured(shop: Shop) -> Shop:
    (shop.path / "config.toml").write_text(
        '[store]\nurl = "store"\n\n[limits]\nlock_timeout_s = 7\n\n[channels.production]\ntargets = [\n  "cpu",\n]\n'
    )
    return shop


def shown(*words: object, home: Path | None = None) -> dict[str, dict[str, Any]]:
    result = run_cli("config", "show", "--json", *words, home=home)
    assert result.code == 0, result.err
    return {row["key"]: row for row in result.document["settings"]}


def test_every_setting_is_listed_with_value_origin_and_variable(
    configured: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELREG_PROMOTE_PREFERENCE_CPU", "fp32")
    found = shown("--set", "serve.python=/opt/a,/opt/b", home=configured.path)
    config = str(configured.path / "config.toml")
    wanted = {
        "home": (str(configured.path), "flag", "--home", None),
        "actor": ("ada@lab", "variable", "MODELREG_ACTOR", None),
        "store.url": ("store", "file", config, 2),
        "limits.lock_timeout_s": (7.0, "file", config, 5),
        "channels.production.targets": (["cpu"], "file", config, 8),
        "promote.preference.cpu": (["fp32"], "variable", "MODELREG_PROMOTE_PREFERENCE_CPU", None),
        "serve.python": (["/opt/a", "/opt/b"], "flag", "--set", None),
        "plugins.allowed": ([], "default", "", None),
    }
    for key, (value, kind, place, line) in wanted.items():
        assert found[key]["value"] == value
        assert found[key]["origin"] == {"kind": kind, "place": place, "line": line}
        assert found[key]["variable"] == variable_of(key)
    without_default = {find_key(f"channels.next.{name}") for name in ("max_verdict_age", "verdicts_from")}
    assert {find_key(key) for key in found} - {None} == set(KEYS) - without_default


def test_what_a_channel_demands_is_shown_as_it_is_written(configured: Shop) -> None:
    demands = ("--set", "channels.next.verdicts_from=same-gpu", "--set", "channels.next.max_verdict_age=12h")
    found = shown(*demands, home=configured.path)
    assert found["channels.next.verdicts_from"]["value"] == "same-gpu"
    assert found["channels.next.max_verdict_age"]["value"] == "12h"
    assert "same-gpu" in configured.cli("config", "show", *demands).out


def test_people_see_the_line_of_the_file(configured: Shop) -> None:
    lines = configured.cli("config", "show", "--set", "limits.build_timeout_s=60").out.splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in lines}
    assert cells["KEY"] == ["VALUE", "ORIGIN"]
    assert cells["limits.lock_timeout_s"] == ["7", f"{configured.path / 'config.toml'}:5"]
    assert cells["limits.build_timeout_s"] == ["60", "--set"]
    assert cells["database.url"] == ["registry.db", "default"]
    verbose = configured.cli("config", "show", "-v").out
    assert "MODELREG_LIMITS_LOCK_TIMEOUT_S" in verbose


def test_the_home_says_how_it_was_found(shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".modelreg").symlink_to(shop.path)
    assert shown()["home"]["origin"] == {"kind": "default", "place": f"found from {tmp_path}", "line": None}
    monkeypatch.setenv("MODELREG_HOME", str(shop.path))
    assert shown()["home"]["origin"] == {"kind": "variable", "place": "MODELREG_HOME", "line": None}
    monkeypatch.delenv("MODELREG_ACTOR")
    assert shown()["actor"]["origin"]["kind"] == "default"


def test_outside_of_a_registry_the_settings_of_a_new_one_are_shown() -> None:
    result = run_cli("config", "show")
    assert result.code == 0
    assert "there is no registry here" in result.err
    assert "store.url" in result.out
    assert "home" not in shown()


def test_a_registry_that_is_named_must_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli("config", "show", home=tmp_path).code == 1
    monkeypatch.setenv("MODELREG_HOME", str(tmp_path))
    assert run_cli("config", "show").code == 1


def test_no_password_is_shown_anywhere(configured: Shop) -> None:
    words = ("--set", "database.url=postgresql://ada:secret@db/models?sslpassword=secret")
    masked = "postgresql://ada:***@db/models?sslpassword=***"
    assert masked in configured.cli("config", "show", *words).out
    assert configured.cli("config", "get", "database.url", *words).out == f"{masked}\n"
    for command in (("config", "show"), ("config", "get", "database.url"), ("config", "check"), ("list",)):
        for more in ((), ("--json",), ("-v",)):
            result = configured.cli(*command, *words, *more)
            assert "secret" not in result.out + result.err, command


def test_one_setting_is_printed_alone(configured: Shop) -> None:
    assert configured.cli("config", "get", "limits.lock_timeout_s").out == "7\n"
    assert configured.cli("config", "get", "promote.preference.cpu").out == "int8,fp32,fp16\n"
    document = configured.cli("config", "get", "channels.production.targets", "--json").document
    assert (document["value"], document["origin"]["line"]) == (["cpu"], 8)
    refused = configured.cli("config", "get", "limits.lock_timeout")
    assert refused.code == 1
    assert "Did you mean 'limits.lock_timeout_s'" in refused.err


def test_what_is_printed_can_be_given_back(configured: Shop) -> None:
    before = shown(home=configured.path)
    settings = [key for key in before if find_key(key)]
    words = [
        word for key in settings for word in ("--set", f"{key}={configured.cli('config', 'get', key).out.strip()}")
    ]
    after = shown(*words, home=configured.path)
    assert {key: after[key]["value"] for key in settings} == {key: before[key]["value"] for key in settings}
    assert {after[key]["origin"]["kind"] for key in settings} == {"flag"}


def test_a_flag_counts_before_the_command_and_after_it_and_the_last_one_wins(configured: Shop) -> None:
    key = "limits.lock_timeout_s"
    assert run_cli("--set", f"{key}=1", "config", "get", key, home=configured.path).out == "1\n"
    assert run_cli("--set", f"{key}=1", "config", "get", key, "--set", f"{key}=2", home=configured.path).out == "2\n"


def test_a_variable_that_sets_nothing_is_warned_of_once_and_stops_nothing(
    configured: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELREG_LIMIT_LOCK_TIMEOUT_S", "5")
    result = configured.cli("list")
    assert result.code == 0
    assert result.err.count("MODELREG_LIMIT_LOCK_TIMEOUT_S sets nothing") == 1
    assert "did you mean MODELREG_LIMITS_LOCK_TIMEOUT_S?" in result.err
    assert configured.cli("list", "--json").document["models"] == []


def test_a_bad_variable_stops_every_command_with_exit_2(configured: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELREG_LIMITS_LOCK_TIMEOUT_S", "soon")
    for words in (("list",), ("config", "show"), ("config", "check"), ("promote", "lenet:1", "--to", "production")):
        result = configured.cli(*words)
        assert result.code == 2, words
        assert result.err.startswith("modelreg: error: MODELREG_LIMITS_LOCK_TIMEOUT_S: limits.lock_timeout_s must be")


def test_settings_and_policies_are_checked_without_database_and_store(configured: Shop) -> None:
    configured.database_path.unlink()
    number = len(configured.home.resolved.values)
    assert f"{number} settings and all policies are understood" in configured.cli("config", "check").out
    assert configured.cli("config", "check", "--json").document["understood"] == number
    policies = configured.path / "policies"
    policies.mkdir()
    (policies / "fp61.toml").write_text("")
    refused = configured.cli("config", "check")
    assert refused.code == 2
    assert "fp61.toml: is never read" in refused.err
    assert configured.cli("config", "check", "--set", "store.url=ftp://x").code == 2


def test_a_setting_of_the_environment_is_what_commands_go_by(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.add_version()
    (shop.path / "store").rename(shop.path / "moved")
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 1
    monkeypatch.setenv("MODELREG_STORE_URL", "moved")
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    refused = shop.cli("promote", "lenet:1", "--to", "production", "--set", "channels.production.targets=cpu,sm_90")
    assert refused.code == 3
    assert "sm_90" in refused.err


def test_a_serving_host_may_name_its_store_in_the_environment(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.add_version()
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    assert run_cli("pull", "lenet@production", "--into", tmp_path / "a").code == 1
    monkeypatch.setenv("MODELREG_STORE_URL", str(shop.path / "store"))
    assert run_cli("pull", "lenet@production", "--into", tmp_path / "a").code == 0
    assert run_cli("pull", "lenet@production", "--into", tmp_path / "b", home=tmp_path).code == 1


def test_a_setting_that_is_there_for_any_name_is_not_called_unknown(shop: Shop) -> None:
    unset = shop.cli("config", "get", "channels.production.targets")
    assert (unset.code, "channels.production.targets is not set" in unset.err) == (1, True)
    assert "MODELREG_CHANNELS_PRODUCTION_TARGETS" in unset.err
    assert "there is no setting" in shop.cli("config", "get", "channels.production.target").err
