"""Part 6: disks that are full, out of inodes, read-only or closed to us, file systems without reflinks, longest names.

Run as a program in a mount namespace of its own (`unshare -rm`), so that no mount outlives it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modelreg_testing import onnx_models
from modelreg_testing.campaign.checker import Broken, check_pulled, require
from modelreg_testing.campaign.children import Ran, run_child
from modelreg_testing.campaign.commands import command_named, look
from modelreg_testing.campaign.homes import CHANNEL, MODEL, Place, Template, make_template, must
from modelreg_testing.campaign.results import Tally, spread
from modelreg_testing.campaign.trials import Prepared, check_told, command_value, prepared, recover, temporary_in

SERVED = f"{MODEL}@{CHANNEL}"
COMMANDS = ("register", "promote", "rollback", "pull")
PAGE = 4096
_FICLONE = 0x40049409
_OUTSIDE = Path(tempfile.gettempdir())
"""Where children's outputs go: beside the small disk, since this is about the registry's."""
_ABOUT = re.compile(r"bytes free|disk is full|inodes|No space left")


def run_apart(folder: Path, *, steps: int, commands: tuple[str, ...] = COMMANDS) -> list[Tally] | str:
    """Run this part in a mount namespace of its own; return its rows, or why it cannot run here."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        return "mount namespaces are not allowed here (unshare -rm)"
    report = folder / "disks.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", __name__, "--folder", str(folder), "--steps", str(steps), "--report", str(report)]
    words += ["--commands", *commands]
    done = subprocess.run(["unshare", "-rm", *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [Tally.from_json(row) for row in json.loads(report.read_text())]


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system in memory at a new folder."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(place: Path, *, leave: int, inodes: bool) -> Path:
    """Fill a file system but for so many pages (or inodes); return what to remove to have room again."""
    ballast = place / "ballast"
    ballast.mkdir()
    state = os.statvfs(place)
    if inodes:
        for number in range(state.f_ffree - leave):
            (ballast / str(number)).touch()
        return ballast
    size = (state.f_bavail * state.f_frsize) - (leave + 1) * PAGE
    with (ballast / "file").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(PAGE, size))
    return ballast


def full_disk(folder: Path, name: str, *, steps: int, inodes: bool) -> Tally:
    """Let a command run out of room at ever later writes, until there is room enough."""
    what = "inodes left" if inodes else "pages left"
    tally = Tally("disks", f"{name}, 0 to {{}} {what}", "local")
    options = "size=64m,nr_inodes=600" if inodes else "size=16m"
    started = time.monotonic()
    with mounted(folder / f"full-{name}-{inodes}", options) as disk:
        template = make_template(disk / "template", None)
        with prepared(command_named(name), template, traced=False) as ready:
            needed = _room_needed(ready, disk, inodes=inodes)
            tally.what = tally.what.format(needed)
            for leave in spread(list(range(needed + 1)), steps):
                _try_full(tally, ready, disk, leave, inodes=inodes)
    tally.seconds = time.monotonic() - started
    return tally


def _room_needed(ready: Prepared, disk: Path, *, inodes: bool) -> int:
    """Return with how many pages (or inodes) a command comes to its end, doubled from one until it does."""
    leave = 1
    while leave < 4096:
        with ready.template.copy("needed") as place, temporary_in(place.folder):
            ballast = fill(disk, leave=leave, inodes=inodes)
            ran = run_child(place, ready.command.words(place), outputs_in=_OUTSIDE)
            shutil.rmtree(ballast)
        if ran.code == 0:
            return leave
        leave *= 2
    raise AssertionError("a command needs more than the disk has")


def _try_full(tally: Tally, ready: Prepared, disk: Path, leave: int, *, inodes: bool) -> None:
    with ready.template.copy("full") as place, temporary_in(place.folder):
        try:
            ballast = fill(disk, leave=leave, inodes=inodes)
            ran = run_child(place, ready.command.words(place), outputs_in=_OUTSIDE)
            served = place.cli("which", SERVED, "--json")
            shutil.rmtree(ballast)
            require(served.code == 0 and served.document["generation"] in (3, 4), "I2", f"which: {served.err[-300:]}")
            value = command_value(place, ready)
            check_told(ran, value=value, ready=ready)
            require(ran.code == 0 or _ABOUT.search(ran.err), "told", f"not a word of room: {ran.err[-300:]}")
            recover(place, ready, fix_first=leave % 2 == 0, value=value, ran=ran)
            tally.count(f"{'old' if value == ready.old else 'new'}, exit {ran.code}")
        except (Broken, AssertionError, OSError) as error:
            shutil.rmtree(disk / "ballast", ignore_errors=True)
            tally.count("VIOLATION")
            what = "inodes" if inodes else "pages"
            told = " ".join(str(error).split())[:500]
            tally.violations.append(f"[local] {ready.command.name} with {leave} {what} left: {told}")


# -- read-only -------------------------------------------------------------------------------------------------
def read_only(template: Template) -> Tally:
    """Bind the registry's home, or its store alone, read-only: changing is refused in words, reading works."""
    tally = Tally("disks", "read-only bind mount of home, of the store", "local")
    started = time.monotonic()
    for part in ("home", "home/store"):
        with template.copy("read-only") as place, temporary_in(place.folder):
            where = place.folder / part
            subprocess.run(["mount", "--bind", str(where), str(where)], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(where)], check=True)
            try:
                _check_closed(tally, place, f"{part} read-only", r"read-only|Read-only")
            finally:
                subprocess.run(["umount", "-l", str(where)], check=True)
            _check_open(tally, place, part)
    tally.seconds = time.monotonic() - started
    return tally


CHANGES: tuple[Callable[[Place], tuple[object, ...]], ...] = (
    lambda _place: ("promote", f"{MODEL}:4", "--to", CHANNEL),
    lambda place: ("register", "mlp", place.folder / "network" / "large" / "mlp.onnx"),
    lambda _place: ("build", "mlp:1"),
)
LOOKS: tuple[tuple[object, ...], ...] = (
    ("list",),
    ("show", MODEL),
    ("history", MODEL),
    ("which", SERVED),
    ("verify",),
    ("doctor",),
    ("rollback", SERVED, "--dry-run"),
    ("rollback", SERVED, "--drill"),
    ("promote", f"{MODEL}:4", "--to", CHANNEL, "--dry-run"),
)


def _check_closed(
    tally: Tally, place: Place, how: str, words: str, prepare: Callable[[], object] | None = None
) -> None:
    for make in CHANGES:
        ran = run_child(place, make(place), prepare=prepare, outputs_in=_OUTSIDE)
        _note(tally, f"{how}: {make(place)[0]}", ran.code == 1 and re.search(words, ran.err) is not None, ran)
    for look_words in LOOKS:
        ran = run_child(place, look_words, prepare=prepare, outputs_in=_OUTSIDE)
        _note(tally, f"{how}: {' '.join(map(str, look_words))}", ran.code == 0, ran)


def _check_open(tally: Tally, place: Place, part: str) -> None:
    for make in CHANGES:
        ran = run_child(place, make(place))
        _note(tally, f"{part} writable again: {make(place)[0]}", ran.code == 0, ran)
    look(place)


def _note(tally: Tally, what: str, is_right: bool, ran: Ran) -> None:
    tally.count("as it should be" if is_right and "Traceback" not in ran.err else "VIOLATION")
    if not is_right or "Traceback" in ran.err:
        tally.violations.append(f"[local] {what}: exit {ran.code}: {' '.join(ran.err.split())[-400:]}")


# -- no permission ---------------------------------------------------------------------------------------------
def no_permission(template: Template) -> Tally:
    """Try as a user who may read the registry and write nothing in it."""
    tally = Tally("disks", "no permission to write", "local")
    started = time.monotonic()
    with template.copy("warm") as place, temporary_in(place.folder):
        for words in (*LOOKS, *(make(place) for make in CHANGES)):
            place.cli(*words)  # nobody may not read what is imported late
    with template.copy("forbidden") as place, temporary_in(place.folder):
        (place.folder / "tmp").chmod(0o1777)
        is_root = os.geteuid() == 0

        def become_nobody() -> None:
            os.setgid(65534)
            os.setuid(65534)

        if not is_root:
            for path in [place.home, *place.home.rglob("*")]:
                path.chmod(path.stat().st_mode & ~0o222)
        try:
            prepare = become_nobody if is_root else None
            _check_closed(tally, place, "no permission", r"read-only|Permission denied", prepare=prepare)
        finally:
            if not is_root:
                for path in [place.home, *place.home.rglob("*")]:
                    path.chmod(path.stat().st_mode | 0o200)
    tally.seconds = time.monotonic() - started
    return tally


# -- names, copies ---------------------------------------------------------------------------------------------
def longest_names(folder: Path) -> Tally:
    """Let every name be as long as it may: 255 bytes for files and folders, the limit of models and channels."""
    tally = Tally("disks", "names of 255 bytes", "local")
    started = time.monotonic()
    deep = folder / ("d" * 255)
    template = make_template(deep, None)
    place = template.place
    network = deep / "long" / ("ö" * 125 + ".onnx")
    onnx_models.save_with_external_data(onnx_models.mlp(seed=2), network, location="w" * 255)
    assert len(network.name.encode()) == 255
    name, channel = "m" * 128, "c" * 128
    for words in (
        ("register", name, network),
        ("build", f"{name}:1"),
        ("promote", f"{name}:1", "--to", channel, "--override-gates", "--message", "long names"),
        ("pull", f"{name}@{channel}", "--into", deep / ("p" * 255), "--target", "cpu"),
        ("rollback", SERVED),
        ("verify",),
        ("doctor",),
    ):
        done = place.cli(*words)
        _note(tally, str(words[0]), done.code == 0, Ran(done.code, done.out, done.err, True, 0.0))
    with suppress(Broken):
        check_pulled(deep / ("p" * 255))
    tally.seconds = time.monotonic() - started
    return tally


def shares_blocks(folder: Path) -> bool:
    """Return whether the file system of a folder has reflinks."""
    source, copy = folder / "reflink-source", folder / "reflink-copy"
    source.write_bytes(b"x" * PAGE)
    try:
        with source.open("rb") as one, copy.open("wb") as other:
            fcntl.ioctl(other, _FICLONE, one.fileno())
    except OSError:
        return False
    finally:
        source.unlink()
        copy.unlink(missing_ok=True)
    return True


def without_reflinks(folder: Path) -> Tally:
    """Promote and roll back on a file system that cannot share blocks: files are copies, each with one name."""
    tally = Tally("disks", "file system without reflinks (tmpfs)", "local")
    started = time.monotonic()
    with mounted(folder / "no-reflinks", "size=64m") as disk:
        assert not shares_blocks(disk)
        template = make_template(disk / "template", None)
        with template.copy("copies") as place, temporary_in(place.folder):
            for words in (("promote", f"{MODEL}:4", "--to", CHANNEL), ("rollback", SERVED), ("verify",), ("doctor",)):
                done = must(place, *words)
                _note(tally, words[0], done.code == 0, Ran(done.code, done.out, done.err, True, 0.0))
            look(place)
    tally.seconds = time.monotonic() - started
    return tally


def main() -> None:
    """Run what needs mounts, and write the rows as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--commands", nargs="+", required=True)
    options = parser.parse_args()
    tallies = [
        full_disk(options.folder, name, steps=options.steps, inodes=inodes)
        for name in options.commands
        for inodes in (False, True)
    ]
    template = make_template(options.folder / "closed" / "template", None)
    tallies.append(read_only(template))
    tallies.append(without_reflinks(options.folder))
    options.report.write_text(json.dumps([tally.to_json() for tally in tallies]))


if __name__ == "__main__":
    main()
