"""Which channels a night is about, and what it would validate of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.context import Registry
from modelreg.cli.render import print_document, print_line
from modelreg.registry.errors import ModelregError, NotFoundError

if TYPE_CHECKING:
    from modelreg.registry.words import Json


def choose_channels_if_any(registry: Registry, places: tuple[str, ...]) -> list[tuple[str, str]] | None:
    """Return what `choose_channels` does; None where the store cannot say what there is: the doctor says why."""
    try:
        _ = registry.storage.list_channels()
    except ModelregError:
        return None
    return choose_channels(registry, places)


def choose_channels(registry: Registry, places: tuple[str, ...]) -> list[tuple[str, str]]:
    """
    Return the channels that are meant.

    Raises:
        NotFoundError: A place names none.
    """
    known = registry.storage.list_channels()
    chosen = [place for place in sorted(known) if not places or {place[1], "@".join(place)} & {*places}]
    for place in places:
        if not any(place in (channel, f"{model}@{channel}") for model, channel in known):
            raise NotFoundError(f"there is no channel {place}", hint="Run `modelreg list` and `modelreg show NAME`.")
    return chosen


def preview_night(registry: Registry, places: tuple[str, ...], *, as_json: bool) -> None:
    """Print which engines would be validated, and which not and why."""
    from modelreg.cli.comparing import read_active
    from modelreg.cli.validating import plan_engines
    from modelreg.registry import golden_sets

    rows: list[Json] = []
    for model, channel in choose_channels(registry, places):
        name = f"{model}@{channel}"
        try:
            active = read_active(registry, model, channel)
            with registry.database.read() as connection:
                golden = golden_sets.newest_golden_set(connection, version_id=active.version.id)
            if golden is None:
                rows.append({"channel": name, "engine": None, "reason": "there is no golden set"})
                continue
            plans = {(each.plan.digest, each.target) for each in active.manifest.engines}
            engines = [each for each in active.engines if each.files and (each.plan_digest, each.target.name) in plans]
            work = plan_engines(registry, active.version, golden, engines, channel=channel)
        except ModelregError as error:
            rows.append({"channel": name, "engine": None, "reason": str(error)})
            continue
        for engine, reason in [*((each, "") for each in work.engines), *work.skipped]:
            cell = f"{engine.target.name} {engine.precision}"
            rows.append({"channel": name, "engine": engine.id, "cell": cell, "reason": reason})
    if as_json:
        print_document({"dry_run": True, "engines": rows})
        return
    for row in rows:
        what = f"engine {row['engine']} ({row['cell']})" if row["engine"] is not None else "its engines"
        verb = "would validate" if not row["reason"] else "would skip"
        print_line(f"{verb} {what} of {row['channel']}" + (f": {row['reason']}" if row["reason"] else ""))
    if not rows:
        print_line("no channel serves anything")
