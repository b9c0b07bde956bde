"""What a night looks at for the whole registry: the doctor's findings, policies, and the leases of serving hosts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from modelreg.registry.errors import NotFoundError
from modelreg.validators.reports.nightly import FindingKind, Severity

if TYPE_CHECKING:
    from modelreg.cli.context import Invocation, Registry
    from modelreg.cli.night_watch import Watch
    from modelreg.registry.pointers import Pointer
    from modelreg.registry.storage.interface import Storage

_FOLLOWS_WITHIN = timedelta(hours=1)
"""A host that serves another release than its channel for longer than this does not follow it."""

_RUNBOOKS = {
    "database": "database-restore",
    "events": "database-restore",
    "version": "database-restore",
    "pointer": "database-restore",
    "history": "database-restore",
    "owner": "database-restore",
    "operation": "bad-release",
    "leftovers": "disk-full",
    "toolchain": "tensorrt-upgrade",
    "server": "s3-away",
    "store": "s3-away",
    "clock": "s3-away",
    "policies": "failed-gate",
    "settings": "failed-gate",
}


def check_with_doctor(invocation: Invocation, watch: Watch, *, deep: bool) -> str:
    """Take the doctor's findings over: what is served is re-hashed, and the chain of events followed."""
    from modelreg.cli.doctor import examine_registry
    from modelreg.registry.checks.findings import Level

    severities = {
        Level.WARNING: Severity.WARNING,
        Level.FIXABLE: Severity.PROBLEM,
        Level.PROBLEM: Severity.PROBLEM,
        Level.DAMAGE: Severity.DAMAGE,
    }
    kinds = {"blobs": FindingKind.BLOB, "release": FindingKind.BLOB, "events": FindingKind.EVENTS}
    findings = examine_registry(invocation, deep=deep)
    for finding in findings:
        if finding.level not in severities:
            continue
        watch.add(
            kinds.get(finding.check, FindingKind.DOCTOR),
            severities[finding.level],
            finding.subject,
            f"{finding.check}: {finding.message}",
            hint=finding.hint,
            runbook=_RUNBOOKS.get(finding.check, ""),
        )
    chain = next((finding.message for finding in findings if finding.check == "events"), "the events were not read")
    return f"{len(findings)} checks; {chain}"


def check_policies(registry: Registry, watch: Watch) -> str:
    """Take over what is wrong with policy files, a loosening that nobody accepted included."""
    from modelreg.cli.policy_check import check_registry
    from modelreg.config.policy_check import CheckLevel

    findings = check_registry(registry.home)
    for finding in findings:
        if finding.level is CheckLevel.PROBLEM:
            watch.add(FindingKind.POLICY, Severity.PROBLEM, finding.subject, finding.message, hint=finding.hint)
    files = {finding.subject for finding in findings}
    return f"{len(files)} policy files" if files else "the shipped policies are in force"


def check_leases(storage: Storage, watch: Watch) -> str:
    """Look for serving hosts that do not follow their channel, or went silent."""
    from modelreg.registry.clock import utc_now
    from modelreg.registry.leases import read_leases

    found = read_leases(storage)
    served: dict[tuple[str, str], Pointer | None] = {}
    for lease in (*found.live, *found.expired):
        place = (lease.model, lease.channel)
        if place not in served:
            served[place] = _read_pointer(storage, *place)
        pointer, subject = served[place], f"{lease.model}@{lease.channel}"
        host = f"{lease.holder.host} ({lease.holder.instance})"
        if lease in found.expired:
            message = f"{host} went silent, its lease on version {lease.version} ran out"
            hint = "If the host is gone, nothing needs to be done; else look why `pull` or the server there stopped."
            watch.add(FindingKind.LEASE, Severity.NOTE, subject, message, hint=hint, runbook="s3-away")
        elif pointer is None:
            message = f"{host} serves version {lease.version} of a channel that is not there"
            watch.add(FindingKind.LEASE, Severity.WARNING, subject, message, hint="Take that host out of service.")
        elif lease.release != pointer.release and utc_now() - pointer.at > _FOLLOWS_WITHIN:
            message = (
                f"{host} still serves version {lease.version} of generation {lease.generation};"
                f" the channel is at generation {pointer.generation}"
            )
            hint = "Look at `modelreg pull --watch` there, or at the server that should load anew."
            watch.add(FindingKind.LEASE, Severity.WARNING, subject, message, hint=hint, runbook="bad-release")
    for note in found.unreadable:
        hint = "Remove it: `modelreg leases drop NAME`."
        watch.add(FindingKind.LEASE, Severity.WARNING, note, "it is no lease that this modelreg can read", hint=hint)
    return f"{len(found.live)} hosts hold leases, {len(found.expired)} ran out"


def _read_pointer(storage: Storage, model: str, channel: str) -> Pointer | None:
    try:
        return storage.read_pointer(model, channel)
    except NotFoundError:
        return None
