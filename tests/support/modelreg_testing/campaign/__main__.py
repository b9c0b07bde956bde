"""`make faults`: run the campaign, or some parts of it, and write `docs/faults.md` from what was found."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from modelreg_testing.campaign import servers
from modelreg_testing.campaign.jobs import Sizes, jobs_of, run_jobs
from modelreg_testing.campaign.page import PARTS, machine, write_page
from modelreg_testing.campaign.results import Tally, save
from modelreg_testing.checkout import ROOT
from modelreg_testing.s3_server import ENVIRONMENT, FOREIGN, seaweedfs

RESULTS = ROOT / "build" / "faults"
PAGE = ROOT / "docs" / "faults.md"
PREFACE = ROOT / "tests" / "campaign" / "preface.md"


def main() -> int:
    """Run the parts that are named; exit with 1 where anything was violated."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which parts (default: all): {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", "2")), help="processes at once")
    parser.add_argument("--page", action="store_true", help="write the page from the last results, and run nothing")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    violations = 0 if options.page else run(options.parts or list(PARTS), at_once=options.jobs)
    write_page(PAGE, RESULTS, preface=PREFACE.read_text(encoding="utf-8"))
    print(f"{PAGE} is written, {violations} violations")
    return 1 if violations else 0


def run(parts: list[str], *, at_once: int) -> int:
    """Run parts, keep what each found, and return the number of violations."""
    os.environ["MODELREG_ACTOR"] = "campaign"
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)
    sizes, about, violations = Sizes.read(), machine(), 0
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory, prefix="modelreg-faults-")))
        folder.chmod(0o755)
        (folder / "s3").mkdir()
        server = stack.enter_context(seaweedfs(folder / "s3"))
        for part in parts:
            started = time.monotonic()
            (folder / part).mkdir()
            if part == "servers":
                rows = servers.run_servers(folder / part, sizes)
            else:
                rows = run_jobs(jobs_of(part, sizes), folder / part, server, at_once=at_once)
            save(RESULTS, part, rows, {**about, "seconds": time.monotonic() - started, "settings": sizes.changed()})
            violations += sum(len(row.violations) for row in rows)
            _print(part, rows)
    return violations


def _print(part: str, rows: list[Tally]) -> None:
    for row in rows:
        print(f"{part:<8} {row.store:<6} {row.what}: {row.trials:,} trials, {row.outcome_text()}", *row.notes, sep="; ")
        for text in row.violations[:20]:
            print(f"  VIOLATION {text}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
