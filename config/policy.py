"""Policies: which measured rule has which limit, per precision. TOML in, one frozen object with a digest out.

Limits are relative wherever they can be, so that the scale of an output does not matter. A NaN or an infinity that
the reference does not have fails whatever a policy says, and is no rule here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from modelreg.config.toml import Table, read_toml, require_keys
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import ConfigError
from modelreg.registry.words import Json, Precision, Word

SCHEMA = 1
_TOP_KEYS = {"schema", "precision", "inherit", "rules"}
_RULE_KEYS = {"metric", "applies_to", "comparison", "limit"}


class Metric(Word):
    """What can be measured of an output."""

    MAX_ABS = "max_abs"
    MEAN_ABS = "mean_abs"
    RMSE = "rmse"
    MAX_RELATIVE = "max_relative"
    RANGE_ERROR = "range_error"
    COSINE = "cosine"
    SQNR_DB = "sqnr_db"
    MISMATCH_RATE = "mismatch_rate"
    TOP1_AGREEMENT = "top1_agreement"
    TOP5_AGREEMENT = "top5_agreement"
    ACCURACY_DROP = "accuracy_drop"


class Scope(Word):
    """What a rule is applied to: each floating or integer output, or the output that the labels belong to."""

    FLOATING = "floating"
    INTEGER = "integer"
    TASK = "task"


_HIGHER_IS_BETTER = {Metric.COSINE, Metric.SQNR_DB, Metric.TOP1_AGREEMENT, Metric.TOP5_AGREEMENT}
_TASK_METRICS = {Metric.TOP1_AGREEMENT, Metric.TOP5_AGREEMENT, Metric.ACCURACY_DROP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit; a measurement meets it when `measured comparison limit` holds, so NaN never does."""

    metric: Metric
    applies_to: Scope
    limit: float

    @property
    def comparison(self) -> str:
        """Return `<=` or `>=`; the metric decides."""
        return ">=" if self.metric in _HIGHER_IS_BETTER else "<="

    def is_met(self, measured: float) -> bool:
        """Return whether the measurement is within the limit."""
        return measured >= self.limit if self.comparison == ">=" else measured <= self.limit

    def is_looser_than(self, other: Rule) -> bool:
        """Return whether this limit lets more pass than the other rule's limit."""
        return not other.is_met(self.limit)

    def to_json(self) -> Json:
        """Return the rule as JSON, in the policy file's spelling."""
        return {
            "metric": str(self.metric),
            "applies_to": str(self.applies_to),
            "comparison": self.comparison,
            "limit": self.limit,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules for one precision; `origins` says which files they came from and is no part of the digest."""

    precision: Precision
    rules: tuple[Rule, ...]
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """Return where the policy came from, for people."""
        return " + ".join(self.origins) or str(self.precision)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of what the policy demands."""
        return json_digest(self.to_json())

    def to_json(self) -> Json:
        """Return what the policy demands as JSON; equal demands give equal JSON."""
        rules = sorted((rule.to_json() for rule in self.rules), key=lambda r: (r["applies_to"], r["metric"]))
        return {"schema": SCHEMA, "precision": str(self.precision), "rules": rules}

    def rules_for(self, scope: Scope) -> tuple[Rule, ...]:
        """Return the rules that apply to `scope`, in the file's order."""
        return tuple(rule for rule in self.rules if rule.applies_to is scope)


def load_policy(
    precision: Precision, *, override: Path | None = None, home: Path | None = None, model: str | None = None
) -> Policy:
    """Return the policy of a precision: the shipped one, changed by the home's, the model's, then `override`.

    A file's rule replaces the earlier rule of the same metric and scope; `inherit = false` drops all earlier ones.

    Args:
        precision: `best` is judged like `fp16`.
        override: A TOML file that must exist.
        home: A registry's home; `policies/PRECISION.toml` in it is read where it exists.
        model: With `home`, `policies/MODEL/PRECISION.toml` too.

    Raises:
        ConfigError: A file is missing, is no TOML, or says something that is not understood.
    """
    judged = Precision.FP16 if precision is Precision.BEST else precision
    with resources.as_file(resources.files("modelreg.config.policies") / f"{judged}.toml") as shipped:
        policy = _change(Policy(precision=judged, rules=()), read_toml(shipped), shipped.name)
    for path in _layers(judged, home, model):
        if path.is_file():
            policy = _change(policy, read_toml(path), str(path))
    if override is not None:
        policy = _change(policy, read_toml(override), str(override))
    if not policy.rules:
        raise ConfigError(f"policy {policy.name} has no rules", hint="An empty policy would pass nothing.")
    return policy


def loosened_rules(policy: Policy, *, base: Policy) -> list[str]:
    """Return, one line each, where `policy` lets more pass than `base`; empty when it only tightens."""
    now = {(rule.metric, rule.applies_to): rule for rule in policy.rules}
    lines = []
    for rule in base.rules:
        changed = now.get((rule.metric, rule.applies_to))
        limit = f"{rule.applies_to} {rule.metric} {rule.comparison} {rule.limit:g}"
        if changed is None:
            lines.append(f"{limit} is dropped")
        elif changed.is_looser_than(rule):
            lines.append(f"{limit} became {changed.limit:g}")
    return lines


def _layers(precision: Precision, home: Path | None, model: str | None) -> list[Path]:
    if home is None:
        return []
    folders = [home / "policies"] + ([home / "policies" / model] if model is not None else [])
    return [folder / f"{precision}.toml" for folder in folders]


def _change(policy: Policy, body: Table, origin: str) -> Policy:
    require_keys(body, _TOP_KEYS, where=f"policy {origin}")
    if body.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(f"policy {origin} has schema {body['schema']!r}, this program knows {SCHEMA}")
    if body.get("precision", str(policy.precision)) != str(policy.precision):
        raise ConfigError(f"policy {origin} is for {body['precision']!r}, not for {policy.precision}")
    inherit, listed = body.get("inherit", True), body.get("rules", [])
    if not isinstance(inherit, bool):
        raise ConfigError(f"policy {origin}: inherit must be true or false")
    if not isinstance(listed, list) or not all(isinstance(rule, dict) for rule in listed):
        raise ConfigError(f"policy {origin}: rules must be written as [[rules]] tables")
    rules = {(rule.metric, rule.applies_to): rule for rule in policy.rules} if inherit else {}
    seen = set()
    for number, entry in enumerate(listed, start=1):
        rule = _rule(entry, f"{origin}, rule {number}")
        key = (rule.metric, rule.applies_to)
        if key in seen:
            raise ConfigError(f"policy {origin}, rule {number}: {rule.metric} is there twice")
        seen.add(key)
        rules[key] = rule
    kept = policy.origins if inherit else ()
    return Policy(precision=policy.precision, rules=tuple(rules.values()), origins=(*kept, origin))


def _rule(entry: Table, where: str) -> Rule:
    require_keys(entry, _RULE_KEYS, where=f"policy {where}")
    if missing := sorted({"metric", "limit"} - set(entry)):
        raise ConfigError(f"policy {where}: {missing[0]} is missing")
    metric = _word(Metric, entry["metric"], f"{where}: metric")
    usual = Scope.TASK if metric in _TASK_METRICS else Scope.FLOATING
    usual = Scope.INTEGER if metric is Metric.MISMATCH_RATE else usual
    scope = _word(Scope, entry.get("applies_to", str(usual)), f"{where}: applies_to")
    if (metric in _TASK_METRICS) != (scope is Scope.TASK) or (
        metric is Metric.MISMATCH_RATE and scope is not Scope.INTEGER
    ):
        raise ConfigError(f"policy {where}: {metric} cannot apply to {scope}", hint=f"It applies to {usual}.")
    limit = entry["limit"]
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
        raise ConfigError(f"policy {where}: limit must be a finite number, not {limit!r}")
    rule = Rule(metric=metric, applies_to=scope, limit=float(limit))
    if entry.get("comparison", rule.comparison) != rule.comparison:
        raise ConfigError(f"policy {where}: {metric} is compared with {rule.comparison}, not {entry['comparison']!r}")
    return rule


def _word(words: type[Any], text: object, where: str) -> Any:
    try:
        return words(text)
    except ValueError as error:
        known = ", ".join(str(word) for word in words)
        raise ConfigError(f"policy {where} {text!r} is unknown", hint=f"Known: {known}.") from error
