"""Re-hash what the registry keeps: blobs, releases, pointers, history, and the chain of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from modelreg.registry import benchmarks, blobs, engines, events, golden_sets, releases, validations, versions
from modelreg.registry.chains import HISTORY_HINT, find_history_faults
from modelreg.registry.damaged_releases import advise_damaged_release
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError, ModelregError, NotFoundError, StorageError
from modelreg.registry.pointers import Pointer
from modelreg.registry.references import ModelReference
from modelreg.registry.storage.interface import Progress, Storage, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One thing that is not what it should be."""

    kind: str
    subject: str
    problem: str
    hint: str


@dataclass(slots=True, kw_only=True)
class VerificationReport:
    """What was read, and what of it is damaged."""

    blobs: int = 0
    releases: int = 0
    pointers: int = 0
    events: int | None = None
    size_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)

    def check(self, kind: str, subject: str, work: Callable[[], int]) -> bool:
        """Run one check that returns the bytes it read; note damage instead of raising."""
        try:
            self.size_bytes += work()
        except (IntegrityError, NotFoundError, StorageError) as error:
            self.damages.append(Damage(kind=kind, subject=subject, problem=str(error), hint=_hint(kind, error)))
            return False
        return True


def _hint(kind: str, error: ModelregError) -> str:
    if kind == "blob":
        heals = "Register or build it again: storing the right bytes heals a blob."
        return f"{heals} `modelreg doctor --deep --fix` copies it from a release that has it."
    if error.hint() != error.default_hint:
        return error.hint()
    if kind == "history":
        return f"`modelreg doctor --fix` writes it again where the database knows it. {HISTORY_HINT}"
    return "Run `modelreg doctor`: it says what the pointer was and how it comes back."


def verify_registry(
    database: Database,
    storage: Storage,
    *,
    with_events: bool = False,
    progress: Progress = no_progress,
) -> VerificationReport:
    """Verify every blob the database names, every release, pointer and history document of the store."""
    report = VerificationReport()
    with database.read() as connection:
        digests = [blob.digest for blob in blobs.list_blobs(connection)]
        named = set(releases.list_releases(connection))
        if with_events:
            _verify_events(report, events.verify_chain(connection))
    _verify_blobs(report, storage, digests, progress)
    for model, channel in storage.list_channels():
        named |= _verify_channel(report, storage, model, channel)
    for release in sorted(named | set(storage.iterate_releases())):
        if not _is_swept(storage, release):  # of one that `gc` removed only the manifest is there, if that
            _verify_release(report, storage, release, progress)
    return report


def _is_swept(storage: Storage, release: str) -> bool:
    try:
        return storage.find_swept(release) is not None
    except IntegrityError:
        return False  # `doctor` tells of a mark that cannot be read


def verify_version(
    database: Database, storage: Storage, reference: ModelReference, *, progress: Progress = no_progress
) -> VerificationReport:
    """Verify the blobs of one version: files, golden sets, plans, logs, reports, benchmarks, active releases."""
    report = VerificationReport()
    with database.read() as connection:
        version = versions.get_version(connection, reference)
        built = engines.list_engines(connection, version_id=version.id)
        newest = validations.newest_validations(connection, version_id=version.id)
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        samples = benchmarks.list_samples(connection, version_id=version.id)
    digests = [file.digest for file in version.source.files]
    digests += [golden.digest] if golden else []
    digests += [file.digest for engine in built if not engine.is_swept for file in engine.files]
    digests += [engine.log_digest for engine in built if engine.log_digest]
    digests += [validation.report_digest for validation in newest.values()]
    digests += samples
    _verify_blobs(report, storage, digests, progress)
    for model, channel in storage.list_channels():
        if model != version.model:
            continue
        pointer = storage.read_pointer(model, channel)
        if pointer is not None and pointer.version == version.number:
            _verify_release(report, storage, pointer.release, progress)
    return report


def _verify_blobs(report: VerificationReport, storage: Storage, digests: Iterable[str], progress: Progress) -> None:
    for digest in dict.fromkeys(digests):
        report.blobs += 1
        report.check("blob", digest, partial(storage.verify_blob, digest, progress=progress))


def _verify_release(report: VerificationReport, storage: Storage, release: str, progress: Progress) -> None:
    report.releases += 1
    if not report.check("release", release, partial(storage.verify_release, release, progress=progress)):
        report.damages[-1] = replace(report.damages[-1], hint=advise_damaged_release(storage, release))


def _verify_channel(report: VerificationReport, storage: Storage, model: str, channel: str) -> set[str]:
    """Check pointer and history, each and as a chain; return the releases that they name."""
    subject = f"{model}@{channel}"
    documents: dict[int, Pointer] = {}
    pointers: list[Pointer | None] = []

    def read_pointer() -> int:
        pointers.append(storage.read_pointer(model, channel))
        return 0

    def read_history(generation: int) -> int:
        documents[generation] = storage.read_history(model, channel, generation)
        return 0

    report.pointers += 1
    known = report.check("pointer", subject, read_pointer)
    damaged = [
        generation
        for generation in storage.list_generations(model, channel)
        if not report.check("history", f"{subject} generation {generation}", partial(read_history, generation))
    ]
    if known:
        report.damages += [
            Damage(kind="history", subject=f"{subject} generation {generation}", problem=problem, hint=HISTORY_HINT)
            for generation, problem in find_history_faults(pointers[0], documents)
            if generation not in damaged
        ]
    found = [*documents.values(), *(pointer for pointer in pointers if pointer is not None)]
    return {pointer.release for pointer in found}


def _verify_events(report: VerificationReport, chain: events.ChainReport) -> None:
    report.events = chain.events
    if chain.broken_at is not None:
        report.damages.append(
            Damage(
                kind="events",
                subject=f"event {chain.broken_at}",
                problem=chain.reason,
                hint=events.CHAIN_HINT,
            )
        )
