"""The report of a version: of verdicts that were just reached, or of those that are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, VersionRecord
    from modelreg.registry.words import Json
    from modelreg.validators.reports.document import Judged

HISTORY_VERSIONS = 20


def assemble(
    registry: Registry,
    *,
    version: VersionRecord,
    golden: GoldenSetRecord | None,
    channel: str | None,
    judged: Sequence[Judged],
    skipped: Sequence[tuple[EngineRecord, str]],
) -> Json:
    """Return the report's document, with the history of the model's last versions."""
    from modelreg.cli.version import __version__
    from modelreg.registry.clock import utc_now
    from modelreg.registry.validation_history import list_past_verdicts
    from modelreg.validators.reports.document import make_document

    with registry.database.read() as connection:
        history = list_past_verdicts(connection, model=version.model, up_to=version.number, versions=HISTORY_VERSIONS)
    return make_document(
        version=version,
        golden_digest=None if golden is None else golden.digest,
        channel=channel,
        judged=judged,
        skipped=skipped,
        history=history,
        tool_version=__version__,
        created_at=utc_now(),
    )
