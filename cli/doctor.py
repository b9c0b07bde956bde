"""`modelreg doctor`: do database, store and pointers agree, and what to do if not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database, open_store
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import dry_run_option, make_command
from modelreg.cli.render import count, print_document, print_line, shorten_digests
from modelreg.cli.tables import Column, print_table
from modelreg.registry.actor import current_actor
from modelreg.registry.errors import BusyError, DatabaseError, IntegrityError, ModelregError

if TYPE_CHECKING:
    from modelreg.config.examination import ConfigProblem
    from modelreg.config.settings import Home
    from modelreg.registry.database import Database
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

    The settings and the policies are examined too: a policy in a file that nothing reads binds nobody.

    Nothing is changed without --fix, and --fix never moves a channel back. With -v, every check has its row.
    """
    findings = _find(invocation.find_home(), fix=fix and not dry_run)
    if invocation.as_json:
        print_document({"findings": [_document(finding) for finding in findings]})
    else:
        _print(findings if invocation.verbose else _merge_channels(findings), no_color=invocation.no_color)
        print_line()
        print_line(_summarise(findings))
    error = _judge(findings)
    return 0 if error is None else report_after_result(error)


def _find(home: Home, *, fix: bool) -> list[Finding]:
    """Return all findings; with settings that cannot be read nobody knows which store and database are meant."""
    from modelreg.config.examination import examine_settings

    problem = examine_settings(home)
    settings = _config_findings("settings", [] if problem is None else [problem])
    if problem is not None:
        return settings
    doctor = _open_doctor(home)
    findings = doctor.repair() if fix else doctor.examine()
    return [*findings, *settings, *_examine_policies(home, doctor.database)]


def _examine_policies(home: Home, database: Database | None) -> list[Finding]:
    from modelreg.config.examination import examine_policies
    from modelreg.registry.versions import list_models

    models = None
    if database is not None:
        try:
            with database.read() as connection:
                models = [model.name for model in list_models(connection)]
        except ModelregError:
            pass  # the database's own check says why
    return _config_findings("policies", examine_policies(home, models=models))


def _config_findings(check: str, problems: list[ConfigProblem]) -> list[Finding]:
    from modelreg.registry.doctor import Finding, Level

    if not problems:
        return [Finding(level=Level.OK, check=check, subject="registry", message="understood")]
    return [
        Finding(level=Level.PROBLEM, check=check, subject=problem.subject, message=problem.message, hint=problem.hint)
        for problem in problems
    ]


def _open_doctor(home: Home) -> Doctor:
    from modelreg.registry.doctor import Doctor

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
        return ModelregError(
            f"{count(problems, 'problem')} {'needs' if problems == 1 else 'need'} a person",
            hint="See the advice above.",
        )
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


def _merge_channels(findings: list[Finding]) -> list[Finding]:
    """Return the findings with one row for each channel that is well."""
    from modelreg.registry.doctor import Level

    merged: list[Finding] = []
    for subject, group in groupby(findings, key=lambda finding: finding.subject if "@" in finding.subject else ""):
        rows = list(group)
        if subject and all(row.level is Level.OK for row in rows):
            message = "; ".join(dict.fromkeys(row.message for row in rows))
            rows = [replace(rows[0], check="channel", message=message)]
        merged += rows
    return merged


def _summarise(findings: list[Finding]) -> str:
    counts = Counter(str(finding.level) for finding in findings)
    channels = len({finding.subject for finding in findings if "@" in finding.subject})
    found = ", ".join(f"{number_of} {level}" for level, number_of in counts.items())
    what = "all is well" if set(counts) <= {"ok", "fixed"} else "not all is well"
    return f"{what}: {count(len(findings), 'check')} ({found}), {count(channels, 'channel')}"


def _print(findings: list[Finding], *, no_color: bool) -> None:
    columns = (
        Column(header="LEVEL"),
        Column(header="CHECK"),
        Column(header="WHAT", folds=True),
        Column(header="FOUND", folds=True),
    )
    rows = [
        (str(finding.level), finding.check, finding.subject, shorten_digests(finding.message)) for finding in findings
    ]
    print_table(columns, rows, no_color=no_color)
    hints = dict.fromkeys(finding.hint for finding in findings if finding.hint and finding.level not in ("ok", "fixed"))
    if hints:
        print_line()
    for hint in hints:
        print_line(f"-> {hint}")
