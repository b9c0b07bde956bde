"""Part 7: one bit turned over, or a file cut short, in every kind of file: found before use, never served."""

from __future__ import annotations

import random
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from modelreg_testing.campaign.checker import (
    Broken,
    check_database,
    check_pulled,
    fingerprint,
    parse_document,
    require,
)
from modelreg_testing.campaign.homes import CHANNEL, MODEL, Place, Template, must
from modelreg_testing.campaign.results import Tally, spread
from modelreg_testing.campaign.trials import temporary_in
from modelreg_testing.s3_server import BUCKET

SERVED = f"{MODEL}@{CHANNEL}"


@dataclass(frozen=True)
class Kind:
    """One kind of file: which of a store's names are of it."""

    name: str
    holds: Callable[[str], bool]


KINDS = (
    Kind("blob", lambda name: name.startswith("blobs/")),
    Kind("manifest", lambda name: name.startswith("releases/") and name.endswith("/manifest.json")),
    Kind("file of a release", lambda name: name.startswith("releases/") and not name.endswith("/manifest.json")),
    Kind("pointer", lambda name: name.endswith("/pointer.json")),
    Kind("history", lambda name: "/history/" in name),
)


def damage_everything(template: Template, *, flips: int, seed: int, limit_files: int = 0) -> list[Tally]:
    """Damage each kind of file `flips` times, and cut every file (or so many of each kind) at four places."""
    chance = random.Random(seed)
    tallies = []
    with template.copy("damaged") as place, temporary_in(place.folder):
        named = check_database(place.database).blobs
        # What nobody names (yet) is nobody's to verify: it is hashed when it is first used.
        objects = {
            name: data
            for name, data in place.objects().items()
            if not name.startswith("blobs/") or name.rpartition("/")[2] in named
        }
        for kind in KINDS:
            names = spread(sorted(name for name in objects if kind.holds(name)), limit_files)
            if names:
                tallies.append(
                    _damage_kind(place, kind, {name: objects[name] for name in names}, flips=flips, chance=chance)
                )
        if template.place.server is None:
            tallies += [_damage_pulled(place, flips, chance), _damage_database(place, flips, chance)]
    for tally in tallies:
        tally.notes.append(f"seed {seed}")
    return tallies


def _damages(data: bytes, flips: int, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    for _ in range(flips):
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        yield f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    for length in sorted({0, 1, len(data) // 2, len(data) - 1}):
        yield f"cut to {length} of {len(data)}", data[:length]


def _damage_kind(place: Place, kind: Kind, objects: dict[str, bytes], *, flips: int, chance: random.Random) -> Tally:
    store = "local" if place.server is None else "s3"
    tally = Tally("damage", kind.name, store)
    started = time.monotonic()
    each = max(1, flips // len(objects))
    for name, whole in objects.items():
        for how, data in _damages(whole, each, chance):
            _put(place, name, data)
            try:
                tally.count("its meaning is the same" if _means_the_same(kind, data, whole) else _judge(place))
            except (Broken, AssertionError, OSError) as error:
                tally.count("VIOLATION")
                tally.violations.append(f"[{store}] {kind.name} {name}, {how}: {str(error)[:400]}")
        _put(place, name, whole)
    require(must(place, "verify").code == 0, "I6", "put back, and still damaged")
    tally.seconds = time.monotonic() - started
    return tally


def _means_the_same(kind: Kind, data: bytes, whole: bytes) -> bool:
    """Return whether a document still says what it said, its own digest included: it lost its last line end."""
    if kind.name not in ("pointer", "history"):
        return False
    try:
        return parse_document(data) == parse_document(whole)
    except Broken:
        return False


def _judge(place: Place) -> str:
    """Find the damage as a user would, and try to be served it."""
    fresh = place.folder / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    pulled = place.cli("pull", SERVED, "--into", fresh, "--target", "cpu")
    require("Traceback" not in pulled.err and "internal error" not in pulled.err, "told", pulled.err[-300:])
    generation = check_pulled(fresh)
    require((generation == 3) == (pulled.code == 0), "I1", f"pull says {pulled.code} and brought {generation}")
    if pulled.code != 0:
        return f"refused by pull, exit {pulled.code}"
    for words in (("doctor",), ("verify",)):
        looked = place.cli(*words)
        require("Traceback" not in looked.err and "internal error" not in looked.err, "told", looked.err[-300:])
        if looked.code != 0:
            return f"not needed for serving, found by {words[0]}, exit {looked.code}"
    raise Broken("I6: nobody noticed")


def _put(place: Place, name: str, data: bytes) -> None:
    if place.server is not None:
        place.server.boto.put_object(Bucket=BUCKET, Key=place.prefix + name, Body=data)
        return
    _write(place.home / "store" / name, data)


def _write(path: Path, data: bytes) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)


# -- a serving host --------------------------------------------------------------------------------------------
def _damage_pulled(place: Place, flips: int, chance: random.Random) -> Tally:
    """Damage what a host has pulled: the next pull mends it, or says why not, and never calls it complete."""
    tally = Tally("damage", "pulled folder", "local")
    started = time.monotonic()
    must(place, "pull", SERVED, "--into", place.served, "--target", "cpu")
    files = [path for path in sorted(place.served.rglob("*")) if path.is_file() and path.parent.name != "tmp"]
    files = [path for path in files if path.name != ".modelreg-pull" and not path.is_symlink()]
    whole = {path: path.read_bytes() for path in files}
    for path, data in whole.items():
        for how, changed in _damages(data, max(1, flips // len(files)), chance):
            _write(path, changed)
            again = place.cli("pull", SERVED, "--into", place.served, "--target", "cpu")
            try:
                if again.code == 0:
                    require(check_pulled(place.served) == 3, "I1", "pull says 0 and another generation is here")
                    tally.count("mended")
                else:
                    require(again.code == 6, "told", f"exit {again.code}: {again.err[-300:]}")
                    tally.count(f"refused, exit {again.code}")
            except (Broken, AssertionError, OSError) as error:
                tally.count("VIOLATION")
                tally.violations.append(f"[pulled] {path.name}, {how}: {str(error)[:400]}")
            for file, content in whole.items():
                if not file.exists() or file.read_bytes() != content:
                    file.unlink(missing_ok=True)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
    tally.seconds = time.monotonic() - started
    return tally


# -- the database ----------------------------------------------------------------------------------------------
def _damage_database(place: Place, flips: int, chance: random.Random) -> Tally:
    """Damage SQLite's file: found, or no row changed, or a value changed and counted; serving goes on."""
    tally = Tally("damage", "database", "local")
    started = time.monotonic()
    for suffix in ("-wal", "-shm"):
        place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
    whole = place.database.read_bytes()
    before = fingerprint({}, place.database)
    for how, data in _damages(whole, flips, chance):
        for suffix in ("-wal", "-shm"):
            place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
        place.database.write_bytes(data)
        try:
            tally.count(_judge_database(place, before))
        except (Broken, AssertionError, OSError) as error:
            tally.count("VIOLATION")
            tally.violations.append(f"[database] {how}: {str(error)[:400]}")
    for suffix in ("-wal", "-shm"):
        place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
    place.database.write_bytes(whole)
    tally.seconds = time.monotonic() - started
    return tally


def _judge_database(place: Place, before: dict[str, str]) -> str:
    served = place.cli("which", SERVED, "--json")
    require(
        served.code == 0 and served.document["generation"] == 3, "I2", f"which says {served.code}: {served.err[-200:]}"
    )
    doctor = place.cli("doctor")
    require("Traceback" not in doctor.err and "internal error" not in doctor.err, "told", doctor.err[-300:])
    if doctor.code != 0:
        return f"found by doctor, exit {doctor.code}"
    try:
        same = fingerprint({}, place.database) == before
    except Exception:  # SQLite itself cannot read it all
        same = False
    return "no row changed" if same else "a value changed, unnoticed (the store serves on)"
