"""`modelreg doctor`: do database, store and pointers agree, and what to do if not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, open_database, open_store
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import dry_run_option, make_command, read_reference
from modelreg.cli.render import count, print_document, print_line, shorten_digests
from modelreg.cli.tables import Column, print_table
from modelreg.registry.actor import current_actor
from modelreg.registry.errors import BusyError, DatabaseError, IntegrityError, ModelregError, StorageError

if TYPE_CHECKING:
    from modelreg.config.examination import ConfigProblem
    from modelreg.config.settings import Home
    from modelreg.registry.checks.findings import Finding
    from modelreg.registry.database import Database
    from modelreg.registry.storage.interface import Storage


def _read_place(value: str) -> str:
    """Read NAME@CHANNEL."""
    reference = read_reference(value)
    if reference.channel is None:
        raise click.BadParameter(f"{value!r} is not NAME@CHANNEL")
    return str(reference)


@make_command(
    "doctor",
    help_line="Check that database, store and pointers agree.",
    examples="""
    modelreg doctor
    modelreg doctor --deep
    modelreg doctor --fix
    modelreg doctor --fix --roll-forward lenet@production
    """,
)
@click.option("--fix", is_flag=True, help="Settle what can be settled without a decision.")
@click.option("--deep", is_flag=True, help="Read every byte: re-hash all blobs and releases.")
@click.option(
    "--roll-forward",
    "forward",
    type=_read_place,
    multiple=True,
    metavar="NAME@CHANNEL",
    help="With --fix: move a pointer that is behind on to the newest generation that is known.",
)
@dry_run_option
@click.pass_obj
def command(invocation: Invocation, *, fix: bool, deep: bool, forward: tuple[str, ...], dry_run: bool) -> int:
    """Check that the database, the store and its pointers agree, and say what to do where they do not.

    The settings, policies, toolchains and clocks are examined too. Nothing is changed without --fix: that finishes or
    closes interrupted commands, writes lost history again, records what the store alone knows (after an older database
    was restored), heals blobs and releases from each other, and removes leftovers. No channel is moved back, and none
    on, unless --roll-forward names it. With -v, every check has its row.

    Exits with 0 when all is well or settled, warnings included; 1 when --fix or a person has something to do; 6 when
    something is damaged.
    """
    if forward and not fix:
        raise click.UsageError("--roll-forward moves a channel, and that needs --fix")
    findings = examine_registry(invocation, fix=fix and not dry_run, deep=deep, forward=forward)
    error = _judge(findings)
    if invocation.as_json:
        exit_code = 0 if error is None else error.exit_code
        print_document({"findings": [_document(finding) for finding in findings], "exit_code": exit_code})
    else:
        shown = findings if invocation.verbose else list(_merge_channels(findings))
        _print(shown, no_color=invocation.no_color)
        print_line()
        print_line(_summarise(shown))
    return 0 if error is None else report_after_result(error)


def examine_registry(
    invocation: Invocation, *, fix: bool = False, deep: bool = False, forward: tuple[str, ...] = ()
) -> list[Finding]:
    """Return all findings; with settings that cannot be read nobody knows which store and database are meant."""
    from modelreg.config.examination import examine_settings
    from modelreg.registry.checks.database import examine_database
    from modelreg.registry.doctor import Doctor

    home = invocation.find_home()
    problem = examine_settings(home)
    settings = _config_findings("settings", [] if problem is None else [problem])
    if problem is not None:
        return settings
    database, why = _open_database(home)
    storage, findings = _open_storage(home, fix=fix)
    if storage is None:
        findings += examine_database(database, why=why)
    else:
        with invocation.reporter().counting_bytes("reading") as progress:
            doctor = Doctor(
                database=database,
                storage=storage,
                actor=current_actor(),
                why=why,
                lock_timeout_s=home.settings.lock_timeout_s,
                deep=deep,
                forward=forward,
                progress=progress,
            )
            findings += doctor.repair() if fix else doctor.examine()
    return [*findings, *settings, *_examine_policies(home, database)]


def _open_database(home: Home) -> tuple[Database | None, str]:
    """Return the database, or None and why."""
    try:
        return open_database(home), ""
    except (DatabaseError, BusyError) as error:
        return None, " ".join(part for part in (f"{error}.", error.hint()) if part)


def _open_storage(home: Home, *, fix: bool) -> tuple[Storage | None, list[Finding]]:
    """Return the store, mended if `fix` says so, or None; and what is to be said of that."""
    from modelreg.registry.checks.findings import FIX_HINT, Level, failure, found
    from modelreg.registry.storage.mending import is_mendable, mend_format

    try:
        return open_store(home), []
    except StorageError as error:
        if not is_mendable(home.store_url):
            return None, [failure("store", "store", error)]
        if not fix:
            return None, [found(Level.FIXABLE, "store", "store", str(error), FIX_HINT)]
        mend_format(home.store_url)
        return open_store(home), [found(Level.FIXED, "store", "store", str(error))]


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
    from modelreg.registry.checks.findings import Level, found

    if not problems:
        return [found(Level.OK, check, "registry", "understood")]
    return [found(Level.PROBLEM, check, problem.subject, problem.message, problem.hint) for problem in problems]


def _judge(findings: list[Finding]) -> ModelregError | None:
    """Return the error that the findings amount to: damage, a problem for a person, or work for `--fix`."""
    from modelreg.registry.checks.findings import FIX_HINT, Level

    levels = [finding.level for finding in findings]
    if damaged := levels.count(Level.DAMAGE):
        return IntegrityError(f"damage was found ({count(damaged, 'finding')})", hint="See the advice above.")
    if problems := levels.count(Level.PROBLEM):
        return ModelregError(
            f"{count(problems, 'problem')} {'needs' if problems == 1 else 'need'} a person",
            hint="See the advice above.",
        )
    if fixable := levels.count(Level.FIXABLE):
        return ModelregError(f"{count(fixable, 'finding')} can be settled", hint=FIX_HINT)
    return None


def _document(finding: Finding) -> dict[str, str]:
    return {
        "level": str(finding.level),
        "check": finding.check,
        "subject": finding.subject,
        "message": finding.message,
        "hint": finding.hint,
    }


def _merge_channels(findings: list[Finding]) -> Iterator[Finding]:
    """Give the findings with one row for each channel that is well."""
    from modelreg.registry.checks.findings import Level

    for subject, group in groupby(findings, key=lambda finding: finding.subject if "@" in finding.subject else ""):
        rows = list(group)
        if subject and all(row.level is Level.OK for row in rows):
            message = "; ".join(dict.fromkeys(row.message for row in rows))
            rows = [replace(rows[0], check="channel", message=message)]
        yield from rows


def _summarise(findings: list[Finding]) -> str:
    """Return what the rows amount to: as many checks as there are rows."""
    counts = Counter(str(finding.level) for finding in findings)
    channels = len({finding.subject for finding in findings if "@" in finding.subject})
    said = ", ".join(f"{number_of} {level}" for level, number_of in counts.items())
    what = "all is well" if set(counts) <= {"ok", "fixed", "warning"} else "not all is well"
    return f"{what}: {count(len(findings), 'check')} ({said}), {count(channels, 'channel')}"


def _print(shown: list[Finding], *, no_color: bool) -> None:
    columns = (
        Column(header="LEVEL"),
        Column(header="CHECK"),
        Column(header="WHAT", folds=True),
        Column(header="FOUND", folds=True),
    )
    rows = [(str(finding.level), finding.check, finding.subject, shorten_digests(finding.message)) for finding in shown]
    print_table(columns, rows, no_color=no_color)
    hints = dict.fromkeys(finding.hint for finding in shown if finding.hint and finding.level not in ("ok", "fixed"))
    if hints:
        print_line()
    for hint in hints:
        print_line(f"-> {hint}")
