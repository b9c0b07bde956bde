"""`modelreg policy check`: are policy files understood, and which thresholds do they loosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import make_command, read_channel_name, read_model_name
from modelreg.cli.policies_in_force import ask_acknowledged
from modelreg.cli.policy_homes import find_home_if_any
from modelreg.cli.render import count, print_document, print_line
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import ModelregError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelreg.config.acknowledgements import Acknowledgement
    from modelreg.config.policy import Policy
    from modelreg.config.policy_check import IsAcknowledged, PolicyFinding, PolicyPlace
    from modelreg.config.settings import Home
    from modelreg.registry.words import Precision


@make_command(
    "check",
    help_line="Check policy files, and name what they loosen.",
    examples="""
    modelreg policy check
    modelreg policy check strict.toml
    modelreg policy check int8.toml --model lenet
    """,
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--model", type=read_model_name, metavar="NAME", help="Compare FILE with the policy of this model.")
@click.option("--channel", type=read_channel_name, metavar="CHANNEL", help="Compare FILE with this channel's policy.")
@click.pass_obj
def check(invocation: Invocation, *, files: tuple[Path, ...], model: str | None, channel: str | None) -> int:
    """Check the registry's policies, or FILEs before they become policies. Nothing is changed.

    Unknown keys, wrong types, files that nothing reads and sets of gates that are empty are problems, and so is a limit
    looser than the shipped one that nobody accepted; limits looser than the file before are named. Exits with 1 if
    there is a problem.
    """
    if files:
        findings = _check_files(invocation, files, model=model, channel=channel)
    else:
        findings = check_registry(invocation.find_home())
    if invocation.as_json:
        print_document({"findings": [_document(finding) for finding in findings]})
    else:
        _print(findings, no_color=invocation.no_color)
    problems = sum(finding.level == "problem" for finding in findings)
    if not problems:
        return 0
    return report_after_result(ModelregError(f"{count(problems, 'problem')} in policies", hint="See the advice above."))


def check_registry(home: Home) -> list[PolicyFinding]:
    """Return what is to be said of every policy file of a registry; raises DatabaseError without its database."""
    from modelreg.config.examination import examine_policies
    from modelreg.config.policy_check import CheckLevel, PolicyFinding, check_place, find_places
    from modelreg.registry.versions import list_models

    database = open_database(home)
    with database.read() as connection:
        models = [model.name for model in list_models(connection)]
    findings = [
        PolicyFinding(level=CheckLevel.PROBLEM, subject=found.subject, message=found.message, hint=found.hint)
        for found in examine_policies(home, models=models)
    ]
    broken = {finding.subject for finding in findings}
    is_accepted = _acknowledged_in(ask_acknowledged(database)())
    for place in find_places(home):
        try:
            checked = check_place(place, home=home, is_acknowledged=is_accepted)
        except ModelregError as error:  # the file that it changes is broken, and is named by itself
            checked = [
                PolicyFinding(level=CheckLevel.PROBLEM, subject=str(place.path), message=str(error), hint=error.hint())
            ]
        findings += [finding for finding in checked if finding.subject not in broken]
    return findings


def _acknowledged_in(given: Sequence[Acknowledgement]) -> IsAcknowledged:
    from modelreg.config.acknowledgements import is_acknowledged
    from modelreg.registry.policy_events import EVERY_MODEL

    def ask(policy: Policy, place: PolicyPlace) -> bool:
        return is_acknowledged(policy, given, model=place.model or EVERY_MODEL, channel=place.channel)

    return ask


def _check_files(
    invocation: Invocation, files: Sequence[Path], *, model: str | None, channel: str | None
) -> list[PolicyFinding]:
    from modelreg.config.policy import load_policy
    from modelreg.config.policy_check import check_file

    is_scoped = model is not None or channel is not None
    home = find_home_if_any(invocation, is_required=True) if is_scoped else None

    def parent(precision: Precision) -> Policy:
        return load_policy(precision, home=home.path if home else None, model=model, channel=channel)

    return [finding for path in files for finding in check_file(path, parent=parent, precision=_precision_of(path))]


def _precision_of(path: Path) -> Precision | None:
    """Return the precision that a file says it is for, or is named after; None: it may be for any."""
    from modelreg.config.toml import read_toml
    from modelreg.registry.words import Precision

    try:
        named = read_toml(path).get("precision", path.stem)
        return Precision(named) if named in list(Precision) else None
    except ModelregError:
        return None  # the check itself says what is wrong


def _document(finding: PolicyFinding) -> dict[str, str]:
    return {
        "level": str(finding.level),
        "file": finding.subject,
        "message": finding.message,
        "hint": finding.hint,
    }


def _print(findings: Sequence[PolicyFinding], *, no_color: bool) -> None:
    if not findings:
        print_line("no policies of its own: the shipped ones are in force")
        return
    columns = (Column(header="LEVEL"), Column(header="FILE", folds=True), Column(header="FOUND", folds=True))
    rows = [(str(finding.level), finding.subject, finding.message) for finding in findings]
    print_table(columns, rows, no_color=no_color)
    hints = dict.fromkeys(finding.hint for finding in findings if finding.hint)
    if hints:
        print_line()
    for hint in hints:
        print_line(f"-> {hint}")
