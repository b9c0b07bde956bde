"""`modelreg nightly`: validate what is active again, look for drift, damage and no way back; report, and exit by it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry, open_database_if_usable
from modelreg.cli.failures import report_after_result
from modelreg.cli.night_choosing import choose_channels_if_any, preview_night
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    positive_number,
    read_channel_name,
    read_model_name,
    read_words,
    whole_number,
)
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import print_document, print_note
from modelreg.registry.errors import GateFailedError, IntegrityError, ModelregError, StorageError

if TYPE_CHECKING:
    from datetime import datetime

    from modelreg.cli.night_files import PastNights
    from modelreg.registry.words import Json

NIGHTS_FOLDER = "nights"
LOCK = "nightly.lock"
TIMEOUT_S = 6 * 3600.0


def _read_places(value: str) -> tuple[str, ...]:
    """Read CHANNEL or NAME@CHANNEL, comma-separated."""
    words = read_words(value)
    for word in words:
        model, at, channel = word.rpartition("@")
        read_channel_name(channel)
        if at:
            read_model_name(model)
    return words


def _read_seconds(value: str) -> float:
    """Read seconds, 0 included."""
    return 0.0 if value.strip() == "0" else positive_number(value)


@make_command(
    "nightly",
    help_line="Validate what is active again, and look for drift.",
    examples="""
    modelreg nightly
    modelreg nightly --channel production --timeout 3600
    modelreg nightly --channel lenet@production --into /srv/nights --deep
    modelreg nightly --dry-run
    """,
)
@list_option(
    "--channel",
    "places",
    type=_read_places,
    metavar="[NAME@]CHANNEL,...",
    help="Only these channels (default: all).",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where nights are kept and compared with (default: nights/ of the registry).",
)
@click.option("--deep", is_flag=True, help="Re-hash every blob and release, not only what is active and the way back.")
@click.option(
    "--timeout",
    "timeout_s",
    type=positive_number,
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="What is not done by then is left out, and a problem.",
)
@click.option(
    "--wait",
    "wait_s",
    type=_read_seconds,
    default="0",
    metavar="SECONDS",
    help="Wait so long for another nightly (default: 0, exit 4 at once).",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--keep", type=whole_number(1), default=90, show_default=True, metavar="N", help="Keep the last N nights in DIR."
)
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    places: tuple[str, ...],
    into: Path | None,
    deep: bool,
    timeout_s: float,
    wait_s: float,
    strict: bool,
    keep: int,
    dry_run: bool,
) -> int:
    """Validate what every channel serves on this host again, and compare it with the last 30 nights.

    Also: re-hashes what is active and what a rollback would bring back, drills every rollback, follows the chain of
    events, examines what doctor examines, policies that are looser than anybody accepted, and serving hosts that do not
    follow. No channel is moved and nothing is repaired; verdicts are kept like those of validate.

    Reports (JSON, HTML, JUnit, Markdown) go to a folder of this night, and `latest` there points to it. Exits by the
    worst finding: 0 none worse than a warning (an outlier, no earlier release to go back to), 1 a problem (drift, a way
    back that fails, an engine that no host ever validated, not done in time), 3 a gate failed, 6 damage. 4: another
    nightly is at work.
    """
    from modelreg.cli.night_files import only_one, prune_nights, require_place
    from modelreg.registry.clock import utc_now
    from modelreg.validators.drift import WINDOW

    home = invocation.find_home()
    folder = into or home.path / NIGHTS_FOLDER
    registry = invocation.open_registry()
    if dry_run:
        preview_night(registry, places, as_json=invocation.as_json)
        return 0
    with only_one(home.path / LOCK, wait_s=wait_s), interrupted_by_signals():
        require_place(folder)
        started_at = utc_now()
        past = _read_past(folder, newest=WINDOW, now=started_at)
        document, pages = _run(
            invocation, registry, places, past=past, deep=deep, timeout_s=timeout_s, strict=strict, folder=folder
        )
        night, unwritten = _write(folder, document, pages, at=started_at)
        if night is not None:
            prune_nights(folder, keep=keep, but=night)
    if invocation.as_json:
        print_document({**document, "folder": None if night is None else str(night)})
    else:
        from modelreg.cli.night_tables import print_night

        print_night(document, no_color=invocation.no_color)
    if night is not None:
        print_note(f"reports: {night}")
    error = unwritten or _judge(document)
    return 0 if error is None else report_after_result(error)


def _write(
    folder: Path, document: Json, pages: dict[str, bytes], *, at: datetime
) -> tuple[Path | None, StorageError | None]:
    """Keep the night; where that fails, what it found is told all the same, and its exit code counts if it is worse."""
    from modelreg.cli.night_files import write_night

    try:
        return write_night(folder, {**_render(document), **pages}, at=at), None
    except StorageError as error:
        error.exit_code = max(error.exit_code, document["exit_code"])
        return None, error


def _read_past(folder: Path, *, newest: int, now: datetime) -> PastNights:
    from modelreg.cli.night_files import read_nights

    return read_nights(folder, newest=newest, now=now)


def _run(
    invocation: Invocation,
    registry: Registry,
    places: tuple[str, ...],
    *,
    past: PastNights,
    deep: bool,
    timeout_s: float,
    strict: bool,
    folder: Path,
) -> tuple[Json, dict[str, bytes]]:
    """Do the work of the night, the cheap and grave checks first, and return its report and the pages beside it."""
    from modelreg.cli.night_channels import Channels
    from modelreg.cli.night_checks import check_leases, check_policies, check_with_doctor
    from modelreg.cli.night_watch import Watch
    from modelreg.cli.version import __version__
    from modelreg.registry.clock import utc_now
    from modelreg.runtime.host import describe_host
    from modelreg.validators.reports.nightly import FindingKind, Severity, make_nightly_document

    began, started_at, host = time.monotonic(), utc_now(), describe_host().to_json()
    watch = Watch(limit_s=timeout_s, verbose=print_note if invocation.verbose else lambda _text: None)
    for name in past.unreadable:
        hint = f"Remove {folder / name}, or read it with the modelreg that wrote it."
        watch.add(FindingKind.HISTORY, Severity.WARNING, name, "this night's report cannot be read", hint=hint)
    if past.ahead:
        message = f"{len(past.ahead)} of the nights here are dated after this one, and are not compared with it"
        hint = f"Look at the clock of this host. Was it wrong then, remove {folder / past.ahead[0]} and any like it."
        watch.add(FindingKind.HISTORY, Severity.WARNING, past.ahead[0], message, hint=hint)
    chosen = choose_channels_if_any(registry, places)
    watch.check(FindingKind.DOCTOR, "doctor", lambda: check_with_doctor(invocation, watch, deep=deep))
    database = open_database_if_usable(registry.home, doing="drilling")
    if database is not None:  # else the doctor has said it
        watch.check(FindingKind.POLICY, "policies", lambda: check_policies(registry, watch))
    if chosen is not None:
        watch.check(FindingKind.LEASE, "leases", lambda: check_leases(registry.storage, watch))
    channels = Channels(
        registry=registry, watch=watch, reporter=invocation.reporter(), nights=past.documents, host=str(host["name"])
    )
    entries = [channels.look_at(model, channel, database=database) for model, channel in chosen or ()]
    found = [entry for entry in entries if entry is not None]
    if database is None and found:
        message = "nothing was validated: the database cannot be opened"
        watch.add(FindingKind.NOT_VALIDATED, Severity.PROBLEM, "registry", message, runbook="database-restore")
    for entry in found if database is not None else ():
        if entry["release"] is not None:
            name = f"{entry['model']}@{entry['channel']}"
            watch.attempt(FindingKind.CHANNEL, "validation", name, lambda entry=entry: channels.validate(entry))  # type: ignore[misc]
    if database is not None and found and not watch.left_out and not any(entry["engines"] for entry in found):
        message = "nothing that is active was validated on this host"
        hint = "Run it on a host that has the targets of these channels, or leave them out with --channel."
        watch.add(FindingKind.NOT_VALIDATED, Severity.PROBLEM, "registry", message, hint=hint, runbook="new-gpu")
    watch.close()
    document = make_nightly_document(
        registry=str(registry.home.path),
        host=host,
        started_at=started_at,
        seconds=time.monotonic() - began,
        channels=found,
        checks=watch.checks,
        findings=watch.findings,
        nights=len(past.documents),
        strict=strict,
        tool_version=__version__,
    )
    return document, channels.pages


def _render(document: Json) -> dict[str, bytes]:
    from modelreg.validators.reports.nightly_junit import render_nightly_junit
    from modelreg.validators.reports.nightly_markdown import render_nightly_markdown
    from modelreg.validators.reports.nightly_page import render_nightly_page

    return {
        "nightly.json": json.dumps(document, indent=2, allow_nan=False).encode() + b"\n",
        "nightly.html": render_nightly_page(document),
        "nightly.xml": render_nightly_junit(document),
        "nightly.md": render_nightly_markdown(document).encode(),
    }


def _judge(document: Json) -> ModelregError | None:
    """Return the error that the worst finding amounts to."""
    code, findings = document["exit_code"], document["findings"]
    if code == 0:
        return None
    worst = findings[0]
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    message = f"{worst['subject']}: {worst['message']}{more}"
    kinds: dict[int, type[ModelregError]] = {3: GateFailedError, 6: IntegrityError}
    kind = kinds.get(code, ModelregError)
    return kind(message, hint=f"See {worst['runbook']}.")
