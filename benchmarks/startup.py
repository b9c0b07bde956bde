"""How long commands take to start, each paired with the import that its aim is a multiple of.

    python benchmarks/startup.py [RUNS]

Runs take turns, so that a machine that gets slower is slower for both. Prints floor (an empty Python), peer (the
import), ours, and the ratio with its aim; processor time of the child, which other processes disturb least.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from modelreg_testing.cli import Shop

CLICK, CORE = "import click", "import click, sqlalchemy"
CASES: tuple[tuple[str, tuple[str, ...], str, float], ...] = (
    ("--help", ("--help",), CLICK, 1.6),
    ("--version", ("--version",), CLICK, 1.6),
    ("which", ("which", "lenet@production"), CLICK, 1.6),
    ("list", ("list",), CORE, 1.25),
    ("show", ("show", "lenet:1"), CORE, 1.25),
    ("history", ("history", "lenet"), CORE, 1.25),
    ("promote", ("promote", "lenet:{turn}", "--to", "production"), CORE, 1.25),
    ("rollback", ("rollback", "lenet", "--channel", "production", "--to-generation", "{other}"), CORE, 1.25),
)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder))
        for word in (1, 2):
            shop.add_version(word=word)
            shop.cli("promote", f"lenet:{word}", "--to", "production")
        os.environ["MODELREG_HOME"] = str(shop.path)
        print(f"{'command':<10} {'floor':>7} {'peer':>7} {'ours':>7} {'ratio':>6}  aim   peer is")
        for name, words, peer, aim in CASES:
            floors, peers, ours = [], [], []
            for turn in range(runs):
                floors.append(cpu_seconds([sys.executable, "-c", "pass"]))
                peers.append(cpu_seconds([sys.executable, "-c", peer]))
                command = [word.format(turn=1 + turn % 2, other=1 + (turn + runs) % 2) for word in words]
                ours.append(cpu_seconds([str(Path(sys.executable).with_name("modelreg")), *command]))
            ratio = statistics.median(o / p for o, p in zip(ours, peers, strict=True))
            print(
                f"{name:<10} {ms(floors)} {ms(peers)} {ms(ours)} {ratio:6.2f}  {aim:<4}  python -c '{peer}'", flush=True
            )


def cpu_seconds(command: list[str]) -> float:
    """Run a command and return its processor time, user and system, in seconds."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    told = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {told.decode()}")
    return usage.ru_utime + usage.ru_stime


def ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:7.1f}"


if __name__ == "__main__":
    main()
