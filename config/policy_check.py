"""What a policy file does to its parent: which thresholds it loosens, and whether any evidence is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelreg.config.examination import JUDGED, ConfigProblem, examine_file, short_path
from modelreg.config.policy import (
    Policy,
    Scope,
    change_policy,
    judged_as,
    load_shipped_policy,
    loosened_rules,
)
from modelreg.config.policy_files import CHANNEL_MARK, EVERY_PRECISION, policy_files
from modelreg.config.settings import Home
from modelreg.registry.errors import ModelregError
from modelreg.registry.words import Precision, Word

IsAcknowledged = Callable[[Policy, "PolicyPlace"], bool]


class CheckLevel(Word):
    """What a finding asks for: nothing, to be known, or to be mended before the policy can be relied on."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlace:
    """A policy file, and what it holds for; None means every model, every channel, every precision."""

    path: Path
    model: str | None = None
    channel: str | None = None
    precision: Precision | None = None

    @property
    def precisions(self) -> Sequence[Precision]:
        """Return the precisions that it changes the policy of."""
        return JUDGED if self.precision is None else [self.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFinding:
    """What was found in one file."""

    level: CheckLevel
    subject: str
    message: str
    hint: str = ""


def find_places(home: Home) -> Iterator[PolicyPlace]:
    """Yield every file of a registry that changes a policy, the most general first."""
    policies = home.policies_path
    folders = [policies, *sorted(p for p in policies.iterdir() if p.is_dir())] if policies.is_dir() else []
    for folder in folders:
        inner = [p for p in sorted(folder.iterdir()) if p.is_dir() and p.name.startswith(CHANNEL_MARK)]
        for place in [folder, *(inner if folder != policies else [])]:
            parts = place.relative_to(policies).parts
            model = next((part for part in parts if not part.startswith(CHANNEL_MARK)), None)
            channel = next((part[1:] for part in parts if part.startswith(CHANNEL_MARK)), None)
            for path in sorted(place.glob("*.toml")):
                if path.stem == EVERY_PRECISION or path.stem in JUDGED:
                    precision = None if path.stem == EVERY_PRECISION else Precision(path.stem)
                    yield PolicyPlace(path=path, model=model, channel=channel, precision=precision)


def check_place(place: PolicyPlace, *, home: Home, is_acknowledged: IsAcknowledged) -> list[PolicyFinding]:
    """Return what is to be said of a registry's file against the files before it."""
    if problems := list(examine_file(place.path)):
        return [_problem(problem) for problem in problems]
    return _merge(
        _check_change(
            place, parent=_parent(place, home, precision), precision=precision, is_acknowledged=is_acknowledged
        )
        for precision in place.precisions
    )


def check_file(
    path: Path, *, parent: Callable[[Precision], Policy], precision: Precision | None
) -> list[PolicyFinding]:
    """
    Return what is to be said of a file that may lie anywhere, against the policies that it would change.

    Args:
        path: The file.
        parent: Returns the policy that it changes.
        precision: Which one; None for all of them.
    """
    place = PolicyPlace(path=path, precision=precision)
    found = []
    for each in place.precisions:
        try:
            found.append(
                _check_change(place, parent=parent(each), precision=each, is_acknowledged=lambda _policy, _place: False)
            )
        except ModelregError as error:
            return [PolicyFinding(level=CheckLevel.PROBLEM, subject=str(path), message=str(error), hint=error.hint())]
    return _merge(found)


def _check_change(
    place: PolicyPlace, *, parent: Policy, precision: Precision, is_acknowledged: IsAcknowledged
) -> list[PolicyFinding]:
    changed = change_policy(parent, place.path)
    subject = short_path(place.path)
    if not any(rule.applies_to is not Scope.INSIDE for rule in changed.rules):
        lacking = "a rule that is evidence" if changed.rules else "any rule: it has no rules"
        message = f"leaves {precision} without {lacking}, and no engine would ever pass"
        return [PolicyFinding(level=CheckLevel.PROBLEM, subject=subject, message=message, hint="Add a rule.")]
    looser = loosened_rules(changed, base=parent)
    if not looser:
        return [PolicyFinding(level=CheckLevel.OK, subject=subject, message=f"{precision}: understood, nowhere looser")]
    message = f"{precision}: looser than {parent.name}: {'; '.join(looser)}"
    beyond_shipped = loosened_rules(changed, base=load_shipped_policy(precision))
    if not beyond_shipped:
        return [PolicyFinding(level=CheckLevel.NOTE, subject=subject, message=f"{message}; not than the shipped one")]
    if is_acknowledged(changed, place):
        return [PolicyFinding(level=CheckLevel.NOTE, subject=subject, message=f"{message}; accepted")]
    return [PolicyFinding(level=CheckLevel.PROBLEM, subject=subject, message=message, hint=_advise(place, precision))]


def _advise(place: PolicyPlace, precision: Precision) -> str:
    model = f" --model {place.model}" if place.model else ""
    channel = f" --channel {place.channel}" if place.channel else ""
    return f"Tighten it, or say why: `modelreg policy accept {precision}{model}{channel} --message WHY`."


def _parent(place: PolicyPlace, home: Home, precision: Precision) -> Policy:
    policy = load_shipped_policy(precision)
    for path in policy_files(home.path, judged_as(precision), model=place.model, channel=place.channel):
        if path == place.path:
            break
        policy = change_policy(policy, path)
    return policy


def _merge(findings: Iterator[list[PolicyFinding]] | list[list[PolicyFinding]]) -> list[PolicyFinding]:
    """Return all findings; what is in order is said once a file."""
    flat = [finding for some in findings for finding in some]
    well = [finding for finding in flat if finding.level is CheckLevel.OK]
    rest = [finding for finding in flat if finding.level is not CheckLevel.OK]
    if rest or not well:
        return rest
    if len(well) == 1:
        return well
    return [PolicyFinding(level=CheckLevel.OK, subject=well[0].subject, message="understood, nowhere looser")]


def _problem(problem: ConfigProblem) -> PolicyFinding:
    return PolicyFinding(level=CheckLevel.PROBLEM, subject=problem.subject, message=problem.message, hint=problem.hint)
