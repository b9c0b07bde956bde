"""`docs/faults.md`, written by a run from what the parts found: date, machine, versions, counts."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from modelreg.cli.version import __version__
from modelreg_testing.campaign.results import Tally, load

PARTS: dict[str, tuple[str, str]] = {
    "kills": (
        "Killed at every step",
        "SIGKILL before and after every named step (writes, fsync, rename, link, mkdir, locks, transactions, requests"
        " to S3), and by `strace` at every system call that writes, syncs, names, locks or sends."
        " After each: old or new, whole; `doctor --fix` or the same command next, in turn;"
        " then `doctor` finds nothing, the command can be repeated,"
        " a second `doctor --fix` changes nothing, and a rollback works with the database gone.",
    ),
    "errors": (
        "An error at every call",
        "EIO, ENOSPC, EDQUOT, EMFILE, EACCES and EINTR from every file step and every such system call. Exit code and"
        " the one line of error have to say what is the case: 0 it happened, 1 and 6 it did not and will not, 5 nobody"
        " knows."
        " *new, exit 1* is a result that could not be printed (the message says so), or a sync in SQLite's COMMIT.",
    ),
    "cuts": (
        "Power cuts",
        "A model of a disk on which unsynced bytes and names are lost or kept in every combination, after every step."
        " The mutation check leaves out one fsync after the other: each time a cut has to break something.",
    ),
    "crowd": (
        "Many writers on one channel",
        "Every process promotes or rolls back the same channel, on condition that it is where it saw it. Each outcome"
        " is held against the history: no update lost, no generation twice or missing, each loser told who won."
        " Readers poll pointer and manifest without pause. With *a lock folder each* the writers in S3 cannot wait for"
        " one another, as on hosts of their own.",
    ),
    "way": (
        "The way to the S3 server fails",
        "A proxy breaks one request of the command after the other, once and three times in a row. `late`: a write"
        " whose connection broke arrives after somebody else has gone on. A conflict is never right: nobody else is"
        " there.",
    ),
    "disks": (
        "Disks, names, numbers",
        "A small tmpfs with ever more pages or inodes left, until the command fits; read-only binds; a user without"
        " permission to write; names of 255 bytes; a file system without reflinks; 100,000 versions.",
    ),
    "damage": (
        "Damaged files",
        "Bits turned over at random offsets, and every file cut to 0, 1, half and all but one byte. `pull` into a new"
        " folder has to refuse or bring the right bytes; what it does not need, `doctor` or `verify` has to find.",
    ),
    "servers": (
        "Other S3 servers",
        "The same on a Ceph RADOS gateway where one can be unpacked, and localbucket, which ignores conditions and has"
        " to be refused.",
    ),
}


def machine() -> dict[str, Any]:
    """Return what a run should say of where it ran."""
    strace = shutil.which("strace")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "modelreg": __version__,
        "commit": _first_line("git", "describe", "--always", "--dirty"),
        "strace": _first_line("strace", "--version").rpartition(" ")[2] if strace else "absent",
    }


def _first_line(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "unknown"


def write_page(path: Path, results: Path, *, preface: str) -> None:
    """Write the page from every part that has results here; a part without keeps what the page says of it."""
    former = _read_sections(path)
    sections = []
    for part, (title, meaning) in PARTS.items():
        found = load(results, part)
        if found is None:
            body = former.get(title, f"`make faults PARTS={part}`. {meaning}\n\nNot run.")
        else:
            rows, about = found
            table = "\n".join(_table(rows))
            body = f"`make faults PARTS={part}`. {meaning}\n\n{table}\n\n{_say_where(about)}"
        sections.append(f"## {title}\n\n{body}\n")
    counts = [count for section in sections for count in _read_counts(section)]
    total, broken = sum(trials for trials, _ in counts), sum(violations for _, violations in counts)
    summary = f"In all {total:,} trials (reads of the control among them), {broken} violations.\n"
    path.write_text("\n".join([preface.rstrip() + "\n", summary, *sections]), encoding="utf-8")


def _read_sections(path: Path) -> dict[str, str]:
    """Return what a page says, by heading."""
    if not path.exists():
        return {}
    titled = (section.partition("\n") for section in path.read_text(encoding="utf-8").split("\n## ")[1:])
    return {title: body.strip() for title, _, body in titled}


def _read_counts(section: str) -> list[tuple[int, int]]:
    """Return trials and violations of each row of a section's table."""
    rows = [re.split(r"(?<!\\)\|", line) for line in section.splitlines() if line.startswith("| ")]
    return [(int(row[3].replace(",", "")), int(row[5])) for row in rows[1:]]


def _table(rows: list[Tally]) -> list[str]:
    lines = ["| what | store | trials | came to | violations | notes |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (
            row.what,
            row.store,
            f"{row.trials:,}",
            row.outcome_text(),
            str(len(row.violations)),
            "; ".join(row.notes),
        )
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    for row in rows:
        lines += [f"\nVIOLATION {' '.join(text.split())[:400]}" for text in row.violations[:3]]
    return lines


def _say_where(about: dict[str, Any]) -> str:
    return (
        f"{about['date']}, {about['machine']}; Python {about['python']}, SQLite {about['sqlite']},"
        f" strace {about['strace']}, modelreg {about['modelreg']} at {about['commit']};"
        f" {about['seconds']:.0f} s with {about['settings']}."
    )
