"""What a night does with each channel: tries its way back, re-hashes, and validates what it serves on this host."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from modelreg.cli.context import Registry, open_releases
from modelreg.cli.night_watch import Watch
from modelreg.cli.progress import Reporter
from modelreg.registry.errors import IntegrityError, ModelregError, NotFoundError
from modelreg.validators.reports.nightly import FindingKind, Severity

if TYPE_CHECKING:
    from modelreg.cli.validating import Work
    from modelreg.registry.database import Database
    from modelreg.registry.pointers import Pointer
    from modelreg.registry.records import EngineRecord, ValidationRecord
    from modelreg.registry.words import Json
    from modelreg.validators.reports.document import Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One engine under one policy tonight; channels that serve it by the same policy share it."""

    validation: ValidationRecord
    report: Json
    latency_ms: float | None


@dataclass(slots=True, kw_only=True)
class Channels:
    """
    The channels of one night.

    Attributes:
        registry: Theirs.
        watch: Where findings go.
        reporter: Where progress is told.
        nights: The documents of earlier nights, the oldest first.
        host: The name of this host.
        pages: The detailed reports that were made, by file name.
    """

    registry: Registry
    watch: Watch
    reporter: Reporter
    nights: tuple[Json, ...]
    host: str
    pages: dict[str, bytes] = field(default_factory=dict)
    _hashed: set[str] = field(default_factory=set)
    _measured: dict[tuple[int, str], _Measured] = field(default_factory=dict)

    # -- the store -----------------------------------------------------------------------------------------
    def look_at(self, model: str, channel: str, *, database: Database | None) -> Json | None:
        """Return the entry of a channel after trying its way back and re-hashing; None where it serves nothing."""
        name = f"{model}@{channel}"
        entry: Json = {"model": model, "channel": channel, "generation": None, "version": None, "release": None}
        entry |= {"rollback": None, "hashed_bytes": 0, "engines": [], "skipped": []}
        pointers: list[Pointer | None] = []

        def read() -> None:
            pointers.append(self.registry.storage.read_pointer(model, channel))

        if not self.watch.attempt(FindingKind.CHANNEL, "reading the pointer", name, read):
            return entry
        pointer = pointers[0]
        if pointer is None:
            return None
        entry |= {"generation": pointer.generation, "version": pointer.version, "release": pointer.release}
        releases = [pointer.release]

        def drill() -> None:
            back = self._drill(pointer, database)
            entry["rollback"] = {key: value for key, value in back.items() if key != "release"}
            releases.extend([back["release"]] if back["release"] else [])

        def hash_blobs() -> None:
            entry["hashed_bytes"] = self._hash(releases)

        self.watch.attempt(FindingKind.ROLLBACK, "rollback drill", name, drill)
        self.watch.attempt(FindingKind.BLOB, "re-hashing", name, hash_blobs)
        return entry

    def _drill(self, pointer: Pointer, database: Database | None) -> Json:
        """Do all of a rollback but the swap."""
        from modelreg.registry.promotion import RollbackRequest

        name = f"{pointer.model}@{pointer.channel}"
        found: Json = {"state": "none", "version": None, "generation": pointer.rolls_back_to, "release": None}
        found |= {"seconds": None, "verified_bytes": None, "error": ""}
        if pointer.rolls_back_to is None:
            message = "there is no way back: there is no earlier release"
            hint = "The next promotion makes this one the way back; until then only a promotion mends a bad release."
            self.watch.add(FindingKind.ROLLBACK, Severity.WARNING, name, message, hint=hint, runbook="bad-release")
            return found | {"error": "there is no earlier release"}
        releases = open_releases(self.registry.home, storage=self.registry.storage, database=database)
        try:
            report = releases.drill_rollback(pointer.model, channel=pointer.channel, request=RollbackRequest())
        except ModelregError as error:
            severity = Severity.DAMAGE if isinstance(error, IntegrityError) else Severity.PROBLEM
            runbook = "" if severity is Severity.DAMAGE else "bad-release"
            message = f"there is no way back: {error}"
            self.watch.add(FindingKind.ROLLBACK, severity, name, message, hint=error.hint(), runbook=runbook)
            return found | {"state": "fails", "error": str(error)}
        return found | {
            "state": "works",
            "version": report.target.version,
            "generation": report.target.generation,
            "release": report.target.release,
            "seconds": round(report.seconds, 6),
            "verified_bytes": report.verified_bytes,
        }

    def _hash(self, releases: list[str]) -> int:
        """Re-hash the blobs of releases, each once a night; return the bytes that were read."""
        from modelreg.registry.manifest import parse_manifest

        storage, total = self.registry.storage, 0
        for release in releases:
            manifest = parse_manifest(storage.read_manifest(release), where=release[:12])
            for file in manifest.files:
                if file.digest in self._hashed:
                    continue
                self._hashed.add(file.digest)
                try:
                    total += storage.verify_blob(file.digest)
                except (IntegrityError, NotFoundError) as error:
                    hint = f"Build {manifest.model}:{manifest.version} again: storing the right bytes heals a blob."
                    subject = f"{manifest.model}:{manifest.version}"
                    self.watch.add(FindingKind.BLOB, Severity.DAMAGE, subject, f"a plan: {error}", hint=hint)
        return total

    # -- engines -------------------------------------------------------------------------------------------
    def validate(self, entry: Json) -> None:
        """Validate what a channel serves on this host, and compare it with earlier nights; fills `entry`."""
        from modelreg.cli.comparing import read_active
        from modelreg.cli.validating import plan_engines
        from modelreg.registry import golden_sets, validations

        name = f"{entry['model']}@{entry['channel']}"
        active = read_active(self.registry, entry["model"], entry["channel"])
        with self.registry.database.read() as connection:
            golden = golden_sets.newest_golden_set(connection, version_id=active.version.id)
            newest = validations.newest_validations(connection, version_id=active.version.id)
        by_plan = {(each.plan_digest, each.target.name): each for each in active.engines if each.files}
        served = [by_plan.get((each.plan.digest, each.target)) for each in active.manifest.listed]
        if None in served:
            message = "the database does not know every engine that it serves"
            self.watch.add(FindingKind.NOT_VALIDATED, Severity.PROBLEM, name, message, runbook="database-restore")
        if golden is None:
            hint = f"Register the source of {active.version.reference} again with --golden or --reference."
            message = "there is no golden set to validate it with"
            self.watch.add(FindingKind.NOT_VALIDATED, Severity.PROBLEM, name, message, hint=hint, runbook="failed-gate")
            return
        chosen = [each for each in served if each is not None]
        work = plan_engines(self.registry, active.version, golden, chosen, channel=entry["channel"])
        # A night accepts nothing: what was loosened without a word is a finding, and no event comes of it.
        work = replace(work, loosened={precision: [] for precision in work.loosened})
        entry["skipped"] = [{"engine": _engine(engine), "reason": reason} for engine, reason in work.skipped]
        for engine, reason in work.skipped:
            if engine.id not in newest:  # else another host has validated it, and does so in its own nights
                message = f"it was never validated, and cannot be here: {reason}"
                hint = (
                    f"Run `modelreg validate {active.version.reference} --engine {engine.id}` on a host that runs it."
                )
                subject = f"{name} {engine.target.name} {engine.precision}"
                self.watch.add(
                    FindingKind.NOT_VALIDATED, Severity.PROBLEM, subject, message, hint=hint, runbook="new-gpu"
                )
        judged: list[Judged] = []
        for engine in work.engines:
            self._validate_engine(entry, work, engine, judged)
        if judged:
            self._add_page(entry, work, judged)

    def _validate_engine(self, entry: Json, work: Work, engine: EngineRecord, judged: list[Judged]) -> None:
        from modelreg.validators.reports.document import Judged

        name = f"{entry['model']}@{entry['channel']} {engine.target.name} {engine.precision}"
        found: list[_Measured] = []

        def measure() -> None:
            measured = self._measure(entry, work, engine, name)
            found.extend([measured] if measured is not None else [])

        if not self.watch.attempt(FindingKind.NOT_VALIDATED, "validation", name, measure):
            entry["skipped"].append(
                {"engine": _engine(engine), "reason": "it could not be validated, see the findings"}
            )
            return
        for measured in found:
            objection = work.current.object_or_say_why_not(engine, measured.validation)
            judged.append(Judged(validation=measured.validation, report=measured.report, objection=objection))
            row = self._row(entry, work, engine, measured)
            entry["engines"].append({**row, "objection": objection})
            self._judge(entry, row, name, objection)

    def _measure(self, entry: Json, work: Work, engine: EngineRecord, name: str) -> _Measured | None:
        """Validate and time one engine, or return None with a finding where nothing here can run it."""
        import json

        from modelreg.cli.night_timing import time_engine
        from modelreg.cli.validating import validate_all
        from modelreg.registry.digests import canonical_json

        key = (engine.id, work.policies[engine.precision].digest)
        if key not in self._measured:
            done = validate_all(self.registry, self.reporter, replace(work, engines=[engine], skipped=[]), message="")
            for _, reason in done.skipped:
                entry["skipped"].append({"engine": _engine(engine), "reason": reason})
                self.watch.add(FindingKind.NOT_VALIDATED, Severity.WARNING, name, reason, runbook="tensorrt-upgrade")
                return None
            validation = done.judged[0][1]
            latency = None
            if validation.verdict != "error":
                latency = time_engine(self.registry, work.version, work.golden, engine)
            report = json.loads(canonical_json(done.reports[validation.id]))  # as it is stored
            self._measured[key] = _Measured(validation=validation, report=report, latency_ms=latency)
        return self._measured[key]

    def _row(self, entry: Json, work: Work, engine: EngineRecord, measured: _Measured) -> Json:
        from modelreg.cli.cells import explain_gate
        from modelreg.validators.nights import compare_with_nights, measure_latency, measure_report

        validation = measured.validation
        values = measure_report(measured.report) if validation.verdict != "error" else {}
        if measured.latency_ms:
            values |= measure_latency(measured.latency_ms)
        row: Json = {
            "engine": _engine(engine),
            "target": engine.target.name,
            "plan": engine.plan_digest,
            "golden_set": work.golden.digest,
            "validation": validation.id,
            "report_digest": validation.report_digest,
            "verdict": str(validation.verdict),
            "gates": dict(Counter(str(gate.outcome) for gate in validation.gates)),
            "failed": [explain_gate(gate) for gate in validation.gates if gate.outcome in ("fail", "error")],
            "measured": values,
        }
        return row | {"drift": compare_with_nights(row, self.nights, model=entry["model"], host=self.host)}

    def _judge(self, entry: Json, row: Json, name: str, objection: str) -> None:
        place = f"{entry['model']}@{entry['channel']}"
        if row["verdict"] != "pass":
            message = f"{row['verdict']}: {'; '.join(row['failed'][:3]) or 'no gate passed that is evidence'}"
            hint = f"`modelreg report {place}` shows it; `modelreg rollback {place}` goes back."
            self.watch.add(FindingKind.GATE, Severity.GATE, name, message, hint=hint)
        elif objection:
            hint = "Promote would not go by this verdict; `modelreg policy check` says more."
            self.watch.add(FindingKind.POLICY, Severity.WARNING, name, objection, hint=hint)
        for drift in row["drift"]:
            is_latency = drift["metric"] == "latency_ms"
            kind = FindingKind.LATENCY_DRIFT if is_latency else FindingKind.ACCURACY_DRIFT
            message = f"{drift['metric']}: {drift['reason']}"
            if drift["trend"] == "drift":
                hint = "Same plan, same inputs: look at what changed on this host (driver, clocks, load)."
                self.watch.add(kind, Severity.PROBLEM, name, message, hint=hint)
            elif drift["trend"] == "outlier":
                hint = "Three nights in a row make it drift."
                self.watch.add(FindingKind.OUTLIER, Severity.WARNING, name, message, hint=hint)

    def _add_page(self, entry: Json, work: Work, judged: list[Judged]) -> None:
        from modelreg.cli.report_documents import assemble
        from modelreg.validators.reports.page import render_page

        document = assemble(
            self.registry,
            version=work.version,
            golden=work.golden,
            channel=entry["channel"],
            judged=judged,
            skipped=work.skipped,
        )
        entry["page"] = f"{entry['model']}@{entry['channel']}.html"
        self.pages[entry["page"]] = render_page(document)


def _engine(engine: EngineRecord) -> Json:
    return {
        "id": engine.id,
        "target": engine.target.name,
        "gpu": engine.target.gpu,
        "precision": str(engine.precision),
        "backend": str(engine.toolchain.backend),
        "backend_version": engine.toolchain.version,
    }
