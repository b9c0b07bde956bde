"""`modelreg doctor`: do database, store and pointers agree, and what to do if not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database, open_store
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import dry_run_option, make_command
from modelreg.cli.render import count, print_document, print_line
from modelreg.cli.tables import Column, print_table
from modelreg.registry.actor import current_actor
from modelreg.registry.errors import BusyError, DatabaseError, IntegrityError, ModelregError

if TYPE_CHECKING:
    from modelreg.registry.doctor import Doctor, Finding


@make_command(
    "doctor",
    help_line="Check that database, store and pointers agree.",
    examples="""
    modelreg doctor
    modelreg doctor --fix
    """,
)
@click.option("--fix", is_flag=True, help="Settle interrupted commands and remove what they left behind.")
@dry_run_option
@click.pass_obj
def command(invocation: Invocation, *, fix: bool, dry_run: bool) -> int:
    """Check that the database, the store and its pointers agree, and say what to do where they do not.

    Nothing is changed without --fix, and --fix never moves a channel back.
    """
    doctor = _open_doctor(invocation)
    findings = doctor.repair() if fix and not dry_run else doctor.examine()
    if invocation.as_json:
        print_document({"findings": [_document(finding) for finding in findings]})
    else:
        _print(findings, no_color=invocation.no_color)
    error = _judge(findings)
    return 0 if error is None else report_after_result(error)


def _open_doctor(invocation: Invocation) -> Doctor:
    from modelreg.registry.doctor import Doctor

    home = invocation.find_home()
    database, why = None, ""
    try:
        database = open_database(home)
    except (DatabaseError, BusyError) as error:
        why = " ".join(part for part in (f"{error}.", error.hint()) if part)
    return Doctor(
        database=database,
        storage=open_store(home),
        actor=current_actor(),
        why=why,
        lock_timeout_s=home.settings.lock_timeout_s,
    )


def _judge(findings: list[Finding]) -> ModelregError | None:
    """Return the error that the findings amount to: damage, a problem for a person, or work for `--fix`."""
    from modelreg.registry.doctor import Level

    levels = [finding.level for finding in findings]
    if damaged := levels.count(Level.DAMAGE):
        return IntegrityError(f"damage was found ({count(damaged, 'finding')})", hint="See the advice above.")
    if problems := levels.count(Level.PROBLEM):
        return ModelregError(f"{count(problems, 'problem')} need a person", hint="See the advice above.")
    if fixable := levels.count(Level.FIXABLE):
        return ModelregError(f"{count(fixable, 'finding')} can be settled", hint="Run `modelreg doctor --fix`.")
    return None


def _document(finding: Finding) -> dict[str, str]:
    return {
        "level": str(finding.level),
        "check": finding.check,
        "subject": finding.subject,
        "message": finding.message,
        "hint": finding.hint,
    }


def _print(findings: list[Finding], *, no_color: bool) -> None:
    columns = (
        Column(header="LEVEL"),
        Column(header="CHECK"),
        Column(header="WHAT", folds=True),
        Column(header="FOUND", folds=True),
    )
    rows = [(str(finding.level), finding.check, finding.subject, finding.message) for finding in findings]
    print_table(columns, rows, no_color=no_color)
    hints = dict.fromkeys(finding.hint for finding in findings if finding.hint and finding.level not in ("ok", "fixed"))
    if hints:
        print_line()
    for hint in hints:
        print_line(f"-> {hint}")
