"""What a server costs: the two transactions of a promotion on PostgreSQL, on this machine, made durable.

    python benchmarks/postgresql.py [--versions 10 100000] [--rounds 200] [--folder DIR]

The peer is the registry's other database, SQLite, in the same folder; the floor is psycopg alone doing two durable
transactions of the same rows on the same server. All three take turns in one run. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.append(str(Path(__file__).parents[1]))  # last: the folders there have names that libraries have too

import psycopg

from benchmarks.database import fill, list_newest, make_promote, resolve
from modelreg.migrations.runner import create_database
from modelreg.registry.database import Database, sqlite_url
from modelreg_testing.postgresql import PostgresServer, postgresql

DURABLE = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, nargs="+", default=[10, 100_000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; a disk, not tmpfs")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        tempfile.TemporaryDirectory(dir=options.folder) as data,
        postgresql(Path(data), settings=DURABLE) as server,
    ):
        print(f"PostgreSQL {server.execute('SHOW server_version')[0][0]}, psycopg {psycopg.__version__}")
        print(
            f"{'what':<34}{'versions':>9}{'SQLite ms':>10}{'floor ms':>10}{'ours ms':>9}{'p99 ms':>9}{'ours/floor':>12}"
        )
        for count in options.versions:
            measure(Path(folder), server, count=count, rounds=options.rounds)


def measure(folder: Path, server: PostgresServer, *, count: int, rounds: int) -> None:
    file = sqlite_url(folder / f"{count}.db")
    create_database(file)
    with server.new_database(template=server.template) as place, place.connect() as raw:
        raw.execute("CREATE TABLE floor (id bigserial PRIMARY KEY, a text, b text, c text)")
        with Database.open(file) as peer, Database.open(place.url) as ours:
            for database in (peer, ours):
                fill(database, count)
            promote = "promote: both transactions"
            both = make_promote(peer), make_promote(ours)
            tell(promote, count=count, rounds=rounds, peer=both[0], ours=both[1], floor=lambda: write(raw))
            for what, look in (("list the newest 100 versions", list_newest), ("resolve NAME@CHANNEL", resolve)):
                tell(what, count=count, rounds=rounds, peer=partial(look, peer), ours=partial(look, ours))


def write(raw: psycopg.Connection[Any]) -> None:
    """Do two transactions with the rows that a promotion writes, an intent, then an outcome and two more."""
    text = "x" * 400
    for rows in (1, 3):
        with raw.transaction():
            for _ in range(rows):
                raw.execute("INSERT INTO floor (a, b, c) VALUES (%s, %s, %s)", (text, text, text))


def tell(
    what: str,
    *,
    count: int,
    rounds: int,
    peer: Callable[[], object],
    ours: Callable[[], object],
    floor: Callable[[], object] | None = None,
) -> None:
    actions = [peer, floor or (lambda: None), ours]
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for action, taken in zip(actions, times, strict=True):
            began = time.perf_counter()
            action()
            taken.append((time.perf_counter() - began) * 1000)
    peer_ms, floor_ms, ours_ms = (statistics.median(each) for each in times)
    ratio = statistics.median(o / f for o, f in zip(times[2], times[1], strict=True)) if floor else None
    shown = f"{floor_ms:10.2f}" if floor else f"{'':>10}"
    p99 = sorted(times[2])[int(0.99 * (len(times[2]) - 1))]
    end = f"{ratio:12.1f}" if ratio else ""
    print(f"{what:<34}{count:>9}{peer_ms:10.2f}{shown}{ours_ms:9.2f}{p99:9.2f}{end}", flush=True)


if __name__ == "__main__":
    main()
