"""`modelreg policy diff`: what one policy demands and another one does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database
from modelreg.cli.options import make_command
from modelreg.cli.policy_homes import find_home_if_any, require_model
from modelreg.cli.render import limit, print_document, print_line, short
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from modelreg.config.policy import Policy, Rule
    from modelreg.registry.words import Precision

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})", re.ASCII)
_FORMS = (
    "Write PRECISION, MODEL/PRECISION, MODEL@CHANNEL/PRECISION, @CHANNEL/PRECISION, shipped/PRECISION, a TOML file, or"
    " the digest of a verdict's policy (8 digits or more)."
)


@make_command(
    "diff",
    help_line="Compare two policies.",
    examples="""
    modelreg policy diff shipped/int8 lenet/int8
    modelreg policy diff lenet/int8 lenet@production/int8
    modelreg policy diff 3f2a9c01 lenet/int8
    modelreg policy diff lenet/int8 proposed/int8.toml
    """,
)
@click.argument("before", metavar="POLICY")
@click.argument("after", metavar="POLICY")
@click.pass_obj
def diff(invocation: Invocation, *, before: str, after: str) -> None:
    """Compare two policies, rule by rule: which limits are tighter, looser, new or dropped in the second one.

    A POLICY is one in force: PRECISION, MODEL/PRECISION, MODEL@CHANNEL/PRECISION or @CHANNEL/PRECISION; or
    shipped/PRECISION; or a TOML file, as it would change the shipped policy; or the digest of a policy that a verdict
    was reached under, of which the first 8 digits do.
    """
    first, second = _read(invocation, before), _read(invocation, after)
    rows = _compare(first, second)
    if invocation.as_json:
        print_document(
            {
                "before": {"name": before, "digest": first.digest, "policy": first.to_json()},
                "after": {"name": after, "digest": second.digest, "policy": second.to_json()},
                "changes": [
                    {
                        "metric": str((old or new).metric),  # type: ignore[union-attr]
                        "applies_to": str((old or new).applies_to),  # type: ignore[union-attr]
                        "before": None if old is None else old.limit,
                        "after": None if new is None else new.limit,
                        "change": change,
                    }
                    for old, new, change in rows
                ],
            }
        )
        return
    _print(first, second, rows, no_color=invocation.no_color)


def _compare(before: Policy, after: Policy) -> list[tuple[Rule | None, Rule | None, str]]:
    old = {(rule.metric, rule.applies_to): rule for rule in before.rules}
    new = {(rule.metric, rule.applies_to): rule for rule in after.rules}
    found = []
    for key in dict.fromkeys([*old, *new]):
        change = _say_change(old.get(key), new.get(key))
        if change:
            found.append((old.get(key), new.get(key), change))
    return found


def _say_change(old: Rule | None, new: Rule | None) -> str:
    if old is None or new is None:
        return "new" if old is None else "dropped"
    if old.limit == new.limit:
        return ""
    return "looser" if new.is_looser_than(old) else "tighter"


def _print(first: Policy, second: Policy, rows: list[tuple[Rule | None, Rule | None, str]], *, no_color: bool) -> None:
    for policy in (first, second):
        print_line(f"{policy.precision}: policy {short(policy.digest)} from {policy.name}")
    print_line()
    if not rows:
        print_line("they demand the same")
        return
    columns = (
        Column(header="METRIC"),
        Column(header="OUTPUTS"),
        Column(header="BEFORE", right=True),
        Column(header="AFTER", right=True),
        Column(header="CHANGE"),
        Column(header="FROM", folds=True),
    )
    table = []
    for old, new, change in rows:
        rule = new or old
        assert rule is not None
        source = second.source_of(new) if new is not None else first.source_of(rule)
        limits = ["-" if each is None else f"{each.comparison} {limit(each.limit)}" for each in (old, new)]
        table.append((str(rule.metric), str(rule.applies_to), *limits, change, source))
    print_table(columns, table, no_color=no_color)


def _read(invocation: Invocation, text: str) -> Policy:
    from modelreg.config.policy import load_policy, load_shipped_policy

    place, found, name = text.rpartition("/")
    if text.endswith(".toml"):
        return _read_file(Path(text))
    precision = _precision(name)
    if precision is None:
        return _read_verdicts_policy(invocation, text)
    if place == "shipped":
        return load_shipped_policy(precision)
    model, at, channel = place.partition("@")
    home = find_home_if_any(invocation, is_required=bool(found))
    if home is not None and model:
        require_model(home, model)
    if at and not channel:
        raise UsageError(f"{text!r} names no channel after '@'", hint=_FORMS)
    path = None if home is None else home.path
    return load_policy(precision, home=path, model=model or None, channel=channel or None)


def _precision(name: str) -> Precision | None:
    from modelreg.registry.words import Precision

    try:
        return Precision(name)
    except ValueError:
        return None


def _read_file(path: Path) -> Policy:
    from modelreg.config.policy import load_policy
    from modelreg.config.toml import read_toml

    named = read_toml(path).get("precision", path.stem)
    precision = _precision(str(named))
    if precision is None:
        raise UsageError(
            f"{path} does not say which precision it is for",
            hint='Write precision = "int8" in it, or name it int8.toml.',
        )
    return load_policy(precision, override=path)


def _read_verdicts_policy(invocation: Invocation, text: str) -> Policy:
    """Return the policy that verdicts were reached under."""
    from modelreg.config.policy import parse_policy
    from modelreg.registry.policy_events import find_judging_policies

    digest = _DIGEST.fullmatch(text)
    if digest is None:
        raise UsageError(f"{text!r} names no policy", hint=_FORMS)
    with open_database(invocation.find_home()).read() as connection:
        found = find_judging_policies(connection, prefix=digest[1])
    if len(found) != 1:
        what = "no verdict was" if not found else "verdicts of several policies were"
        raise NotFoundError(
            f"{what} reached under a policy {digest[1]}",
            hint="`modelreg show REF --json` has the digest of each verdict's.",
        )
    return parse_policy(next(iter(found.values())))
