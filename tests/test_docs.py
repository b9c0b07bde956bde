"""The pages in docs/ name every metric, key, setting and variable, and the program reads their examples."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelreg.config import policy, settings
from modelreg.config.keys import KEYS, find_key, unknown_variables, variable_of
from modelreg.config.policy import ALWAYS, Metric, Rule, Scope, load_policy
from modelreg.config.settings import load_settings
from modelreg.registry.errors import ConfigError
from modelreg.registry.storage.s3_location import SETTINGS
from modelreg.registry.words import Backend, GateOutcome, Precision, Verdict
from modelreg_testing.checkout import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
PAGES = sorted(DOCS.rglob("*.md"))
DESIGN_WORDS = (
    *("model", "source", "version", "variant", "recipe", "engine", "plan", "backend", "toolchain", "target", "cell"),
    *("reference", "golden set", "gate", "policy", "validation", "channel", "release", "generation", "store", "blob"),
)


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of every table row of a page by its first cell, without backquotes."""
    found = {}
    for line in read(page).splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            cells = [cell.replace(r"\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[cells[0].strip("`")] = cells[1:]
    return found


def flatten(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def defaults() -> list[tuple[str, Any]]:
    shipped = Path(settings.__file__).with_name("settings.toml").read_text(encoding="utf-8")
    return list(flatten(tomllib.loads(shipped)))


def examples(page: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("metric", Metric)
def test_every_metric_has_formula_unit_comparison_and_scope_and_is_in_the_glossary(metric: Metric) -> None:
    formula, unit, limit, scopes = rows("policies.md")[metric]
    assert formula
    assert unit
    assert limit == f"`{Rule(metric=metric, applies_to=Scope.FLOATING, limit=0).comparison}`"
    assert set(scopes.split(", ")) <= {str(scope) for scope in Scope}
    assert rows("glossary.md")[metric][0]


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("scope", Scope)
def test_a_metric_is_accepted_in_the_scopes_that_its_row_lists(tmp_path: Path, metric: Metric, scope: Scope) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f'[[rules]]\nmetric = "{metric}"\napplies_to = "{scope}"\nlimit = 1\n')
    listed = rows("policies.md")[metric][-1].split(", ")
    try:
        load_policy(Precision.INT8, override=path)
    except ConfigError:
        assert str(scope) not in listed
    else:
        assert str(scope) in listed


@pytest.mark.parametrize("gate", ALWAYS)
def test_the_gates_that_always_apply_are_explained(gate: str) -> None:
    assert gate in rows("policies.md")
    assert gate in rows("glossary.md")


def test_every_key_of_a_policy_file_is_explained() -> None:
    explained = rows("policies.md")
    for key in policy._TOP_KEYS | {f"rules.{key}" for key in policy._RULE_KEYS} | {str(scope) for scope in Scope}:
        assert key in explained, key


def test_the_example_of_a_policy_is_one(tmp_path: Path) -> None:
    (example,) = examples("policies.md")
    path = tmp_path / "int8.toml"
    path.write_text(example, encoding="utf-8")
    assert len(load_policy(Precision.INT8, override=path).rules) >= 2


@pytest.mark.parametrize(("key", "default"), defaults())
def test_every_setting_is_explained_with_its_default(key: str, default: object) -> None:
    variable, shown, meaning = rows("configuration.md")[key]
    assert variable == f"`{variable_of(key)}`"
    assert tomllib.loads(f"value = {shown.strip('`')}")["value"] == default
    assert meaning


def test_the_table_of_settings_has_every_key_and_no_other() -> None:
    listed = [key for key in rows("configuration.md") if re.fullmatch(r"\w+(\.\w+)+", key) and key != "registry.db"]
    named = {key.name for key in KEYS}
    assert {"promote.preference.TARGET" if key.startswith("promote.preference.") else key for key in listed} - {
        "config.toml"
    } == named
    assert all(rows("configuration.md")[key][0] == f"`{variable_of(key)}`" for key in named)
    shipped = {find_key(key) for key, _ in defaults()}
    without = {key.name for key in KEYS if key not in shipped}
    assert without == {f"channels.CHANNEL.{name}" for name in ("targets", "max_verdict_age", "verdicts_from")}


def test_every_variable_that_a_page_names_is_one(tmp_path: Path) -> None:
    pages = [read(page) for page in ("configuration.md", "databases.md", "s3.md")]
    pages.append((ROOT / "README.md").read_text(encoding="utf-8"))
    named = {name for page in pages for name in re.findall(r"MODELREG_[A-Z0-9_]+", page)} - {"MODELREG_SECTION_KEY"}
    assert len(named) > 10
    assert unknown_variables(named) == ["MODELREG_"] if "MODELREG_" in named else unknown_variables(named) == []


def test_the_example_of_settings_requires_targets(tmp_path: Path) -> None:
    (example,) = examples("configuration.md")
    path = tmp_path / "config.toml"
    path.write_text(example, encoding="utf-8")
    assert load_settings(path).channel_targets("production") == ("cpu", "sm_90")
    assert rows("configuration.md")["channels.CHANNEL.targets"][1] == "`[]`"


@pytest.mark.parametrize("variable", ["MODELREG_HOME", "MODELREG_ACTOR", "NO_COLOR"])
def test_the_environment_is_explained(variable: str) -> None:
    assert variable in rows("configuration.md")


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_of_a_store_in_s3_is_explained(setting: str) -> None:
    assert rows("s3.md")[setting][0]


@pytest.mark.parametrize("word", DESIGN_WORDS)
def test_every_word_is_in_the_glossary_in_one_line(word: str) -> None:
    assert rows("glossary.md")[word][0]


@pytest.mark.parametrize("word", [*Precision, *Backend, *GateOutcome, *Verdict, *Scope])
def test_closed_sets_of_words_are_listed_in_the_glossary(word: str) -> None:
    assert f"`{word}`" in read("glossary.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        led_to = (page.parent / target).resolve()
        assert led_to.exists(), target
        assert led_to.is_relative_to(DOCS) or led_to.is_relative_to(EXAMPLES) or led_to.parent == ROOT, target
