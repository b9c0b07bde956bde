"""Policies: which measured rule has which limit, per precision. TOML in, one frozen object with a digest out.

Limits are relative wherever they can be, so that the scale of an output does not matter. A NaN or an infinity that
the reference does not have fails whatever a policy says, and is no rule here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from modelreg.config.policy_files import EVERY_PRECISION, policy_files
from modelreg.config.toml import Table, as_finite, read_toml, require_keys
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import ConfigError
from modelreg.registry.suggestions import say_close
from modelreg.registry.words import Json, Precision, Word

SCHEMA = 1
FINITE = "finite"
REALISED = "realised_precision"
ALWAYS = {
    FINITE: "no NaN or infinity where the reference has another value, in any output",
    REALISED: "no node of the engine stayed in another precision than was asked for",
}
"""The gates that every validation has, whatever a policy says, and what they demand."""

_STORED = "stored with the verdict"
_SHIPPED = Path(__file__).with_name("policies")
_TOP_KEYS = {"schema", "precision", "inherit", "rules"}
_RULE_KEYS = {"metric", "applies_to", "comparison", "limit"}


class Metric(Word):
    """What can be measured of an output, and of the values inside an engine."""

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
    OVERFLOWS = "overflows"
    SATURATION = "saturation"
    RANGE_USE = "range_use"
    REPEAT_ERROR = "repeat_error"
    BATCH_ERROR = "batch_error"
    SHAPE_ERROR = "shape_error"
    GAIN = "gain"
    LATENCY_RATIO = "latency_ratio"


class Scope(Word):
    """What a rule is applied to.

    Each floating or integer output, the output that the labels belong to, each slice of the samples, the values between
    an engine's nodes, how it behaves from run to run, what it is worth beside its FP16 sibling, or what it is beside
    the engine that a channel serves now.
    """

    FLOATING = "floating"
    INTEGER = "integer"
    TASK = "task"
    SLICE = "slice"
    INSIDE = "inside"
    BEHAVIOUR = "behaviour"
    VALUE = "value"
    ACTIVE = "active"


_HIGHER_IS_BETTER = {
    *(Metric.COSINE, Metric.SQNR_DB, Metric.TOP1_AGREEMENT, Metric.TOP5_AGREEMENT),
    *(Metric.RANGE_USE, Metric.GAIN),
}
_ONLY_SCOPES = {
    Metric.MISMATCH_RATE: (Scope.INTEGER,),
    Metric.TOP1_AGREEMENT: (Scope.TASK, Scope.SLICE),
    Metric.TOP5_AGREEMENT: (Scope.TASK,),
    Metric.ACCURACY_DROP: (Scope.TASK, Scope.SLICE, Scope.ACTIVE),
    Metric.OVERFLOWS: (Scope.INSIDE,),
    Metric.SATURATION: (Scope.INSIDE,),
    Metric.RANGE_USE: (Scope.INSIDE,),
    Metric.REPEAT_ERROR: (Scope.BEHAVIOUR,),
    Metric.BATCH_ERROR: (Scope.BEHAVIOUR,),
    Metric.SHAPE_ERROR: (Scope.BEHAVIOUR,),
    Metric.GAIN: (Scope.VALUE,),
    Metric.LATENCY_RATIO: (Scope.ACTIVE,),
    Metric.SQNR_DB: (Scope.FLOATING, Scope.INTEGER, Scope.SLICE),
}
"""Metrics of some scopes alone, the usual one first; all others are of floating or integer outputs."""
_NAMED_SCOPES = (Scope.SLICE, Scope.ACTIVE)
_OUTPUT_SCOPES = (Scope.FLOATING, Scope.INTEGER)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.-]*")


class TaskMetric(str):
    """The name of a task's own metric: `module:function`, or an entry point of the group `modelreg.metrics`."""

    __slots__ = ()


def say_limit(limit: float) -> str:
    """Return a limit as somebody wrote it: 0.9999999 is not 1."""
    return f"{limit:.15g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit; a measurement meets it when `measured comparison limit` holds, so NaN never does."""

    metric: Metric | TaskMetric
    applies_to: Scope
    limit: float

    @property
    def comparison(self) -> str:
        """Return `<=` or `>=`; the metric decides."""
        return ">=" if self.metric in _HIGHER_IS_BETTER else "<="

    @property
    def demand(self) -> str:
        """Return comparison and limit, for example `>= 0.99`."""
        return f"{self.comparison} {say_limit(self.limit)}"

    @property
    def gate(self) -> str:
        """Return what the gate of this rule is called: where a metric is of several things, one name for each."""
        return f"{self.applies_to}_{self.metric}" if self.applies_to in _NAMED_SCOPES else str(self.metric)

    def __str__(self) -> str:
        return f"{self.gate} {self.demand}"

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
    """The rules for one precision.

    `origins` says which files they came from, `sources` which of these each rule is of; neither is part of the digest.
    """

    precision: Precision
    rules: tuple[Rule, ...]
    origins: tuple[str, ...] = field(default=(), compare=False)
    sources: Mapping[tuple[str, Scope], str] = field(default_factory=dict, compare=False)

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

    def source_of(self, rule: Rule) -> str:
        """Return which file a rule came from, or an empty string where nobody knows any more."""
        return self.sources.get((rule.metric, rule.applies_to), "")

    def rules_for(self, scope: Scope) -> tuple[Rule, ...]:
        """Return the rules that apply to `scope`, in the file's order."""
        return tuple(rule for rule in self.rules if rule.applies_to is scope)


def judged_as(precision: Precision) -> Precision:
    """Return the precision whose policy judges an engine: `best` may become FP16, and is judged like it."""
    return Precision.FP16 if precision is Precision.BEST else precision


def load_policy(
    precision: Precision,
    *,
    override: Path | None = None,
    home: Path | None = None,
    model: str | None = None,
    channel: str | None = None,
) -> Policy:
    """Return the policy of a precision: the shipped one, changed by the home's, the model's, the channel's files, then
    `override`.

    A file's rule replaces the earlier rule of the same metric and scope; `inherit = false` drops all earlier ones.

    Args:
        precision: `best` is judged like `fp16`.
        override: A TOML file that must exist.
        home: A registry's home; `policies/default.toml` and `policies/PRECISION.toml` in it are read where they exist.
        model: With `home`, the same two files in `policies/MODEL/` too.
        channel: With `home`, those in `policies/@CHANNEL/` too, and with `model` those in `policies/MODEL/@CHANNEL/`.

    Raises:
        ConfigError: A file is missing, is no TOML, or says something that is not understood.
    """
    policy = load_shipped_policy(precision)
    files = [] if home is None else list(policy_files(home, policy.precision, model=model, channel=channel))
    for path in files if override is None else [*files, override]:
        policy = change_policy(policy, path)
    if not policy.rules:
        raise ConfigError(f"policy {policy.name} has no rules", hint="An empty policy would pass nothing.")
    return policy


@lru_cache
def load_shipped_policy(precision: Precision) -> Policy:
    """Return the policy that modelreg ships for a precision."""
    judged = judged_as(precision)
    shipped = _SHIPPED / f"{judged}.toml"
    return _change(Policy(precision=judged, rules=()), read_toml(shipped), shipped.name)


def change_policy(policy: Policy, path: Path) -> Policy:
    """
    Return `policy` changed by one file.

    Raises:
        ConfigError: It is missing, is no TOML, or says something that is not understood.
    """
    body = read_toml(path)
    if path.stem == EVERY_PRECISION and "precision" in body:
        raise ConfigError(
            f"policy {path} is for every precision, and says that it is for {body['precision']!r:.40}",
            hint="Leave precision out, or name the file after it.",
        )
    return _change(policy, body, str(path))


def parse_policy(body: Json) -> Policy:
    """Return the policy that a verdict was stored with, as `Policy.to_json` wrote it.

    Raises:
        ConfigError: It was written by a program whose rules this one does not know.
    """
    precision = _word(Precision, body.get("precision"), f"{_STORED}: precision")
    return Policy(precision=precision, rules=_change(Policy(precision=precision, rules=()), body, _STORED).rules)


def loosened_rules(policy: Policy, *, base: Policy) -> list[str]:
    """Return, one line each, where `policy` lets more pass than `base`; empty when it only tightens."""
    lines = []
    for rule, changed in _looser_pairs(policy, base):
        limit = f"{rule.applies_to} {rule.metric} {rule.demand}"
        lines.append(f"{limit} is dropped" if changed is None else f"{limit} became {say_limit(changed.limit)}")
    return lines


def missing_demands(policy: Policy, *, current: Policy) -> list[str]:
    """Return, one text each, what `current` demands and an earlier `policy` did not; empty if that was as strict."""
    return [
        f"{rule} was not asked" if earlier is None else f"{earlier} was looser than {rule.demand}"
        for rule, earlier in _looser_pairs(policy, current)
    ]


def _looser_pairs(policy: Policy, base: Policy) -> Iterator[tuple[Rule, Rule | None]]:
    """Yield each rule of `base` that `policy` loosens, with the looser rule, or None where there is none."""
    now = {(rule.metric, rule.applies_to): rule for rule in policy.rules}
    for rule in base.rules:
        changed = now.get((rule.metric, rule.applies_to))
        if changed is None or changed.is_looser_than(rule):
            yield rule, changed


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
    sources = dict(policy.sources) if inherit else {}
    seen = set()
    for number, entry in enumerate(listed, start=1):
        rule = _rule(entry, f"{origin}, rule {number}")
        key = (rule.metric, rule.applies_to)
        if key in seen:
            raise ConfigError(f"policy {origin}, rule {number}: {rule.metric} is there twice")
        seen.add(key)
        rules[key], sources[key] = rule, origin
    kept = policy.origins if inherit else ()
    return Policy(precision=policy.precision, rules=tuple(rules.values()), origins=(*kept, origin), sources=sources)


def _rule(entry: Table, where: str) -> Rule:
    require_keys(entry, _RULE_KEYS, where=f"policy {where}")
    if missing := sorted({"metric", "limit"} - set(entry)):
        raise ConfigError(f"policy {where}: {missing[0]} is missing")
    metric, possible = _metric(entry, where)
    scope = _word(Scope, entry.get("applies_to", str(possible[0])), f"{where}: applies_to")
    if scope not in possible:
        hint = f"It applies to {' and '.join(map(str, possible))}."
        raise ConfigError(f"policy {where}: {metric} cannot apply to {scope}", hint=hint)
    limit = as_finite(entry["limit"])
    if limit is None:
        raise ConfigError(f"policy {where}: limit must be a finite number, not {entry['limit']!r:.40}")
    rule = Rule(metric=metric, applies_to=scope, limit=limit)
    if entry.get("comparison", rule.comparison) != rule.comparison:
        raise ConfigError(f"policy {where}: {metric} is compared with {rule.comparison}, not {entry['comparison']!r}")
    return rule


def _metric(entry: Table, where: str) -> tuple[Metric | TaskMetric, tuple[Scope, ...]]:
    """Return the metric of a rule and what it can apply to; a task's own metric is known by its colon or its scope."""
    text = entry["metric"]
    is_ours = text in {str(metric) for metric in Metric} if isinstance(text, str) else True
    if not is_ours and (_FUNCTION.fullmatch(text) or entry.get("applies_to") == Scope.TASK.value):
        if not (_FUNCTION.fullmatch(text) or _ENTRY_POINT.fullmatch(text)):
            raise ConfigError(f"policy {where}: metric {text!r} is neither module:function nor the name of a plug-in")
        return TaskMetric(text), (Scope.TASK,)
    metric = _word(Metric, text, f"{where}: metric")
    return metric, _ONLY_SCOPES.get(metric, _OUTPUT_SCOPES)


def _word(words: type[Any], text: object, where: str) -> Any:
    try:
        return words(text)
    except ValueError as error:
        known = [str(word) for word in words]
        close = say_close(text, known) if isinstance(text, str) else ""
        hint = " ".join(part for part in (close, f"Known: {', '.join(known)}.") if part)
        raise ConfigError(f"policy {where} {text!r} is unknown", hint=hint) from error
