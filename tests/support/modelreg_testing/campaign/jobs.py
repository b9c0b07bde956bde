"""The large form: every part as jobs, some at once, each in a forked process with a registry of its own."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from modelreg_testing.campaign import crowd, cuts, damage, disks, scale, trials, way
from modelreg_testing.campaign.children import has_strace
from modelreg_testing.campaign.commands import COMMANDS, Command, command_named
from modelreg_testing.campaign.homes import make_template
from modelreg_testing.campaign.results import Tally
from modelreg_testing.s3_server import S3Server
from modelreg_testing.storage_faults import start_child

Work = Callable[[Path, "S3Server | None"], "list[Tally]"]


@dataclass(frozen=True)
class Sizes:
    """How much of each part; every field is an environment variable FAULTS_NAME, and 0 means all where it limits."""

    points: int = 0
    calls: int = 0
    s3_points: int = 0
    s3_calls: int = 60
    slow: int = 40
    errors: int = 0
    writers: int = 64
    readers: int = 8
    seconds: float = 60.0
    requests: int = 0
    late_s: float = 10.0
    steps: int = 24
    flips: int = 1000
    s3_flips: int = 200
    versions: int = 100_000
    mutants: int = 0
    seed: int = 1

    @classmethod
    def read(cls) -> Sizes:
        """Return the defaults, overlaid with the environment."""
        given: dict[str, Any] = {}
        for each in fields(cls):
            text = os.environ.get(f"FAULTS_{each.name.upper()}")
            if text is not None:
                given[each.name] = float(text) if isinstance(each.default, float) else int(text)
        return cls(**given)

    def changed(self) -> str:
        """Return the settings that are not the defaults, as they would be written again."""
        changed = [
            f"FAULTS_{each.name.upper()}={getattr(self, each.name):g}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        ]
        return " ".join(changed) or "the default sizes"


@dataclass(frozen=True)
class Job:
    """One process's work; `alone` ones share the machine with no other, `store` says which template they need."""

    name: str
    work: Work
    store: str = "local"
    alone: bool = False


def jobs_of(part: str, sizes: Sizes) -> list[Job]:
    """Return the jobs of a part."""
    return {
        "kills": _kills,
        "errors": _errors,
        "cuts": _cuts,
        "crowd": _crowd,
        "way": _way,
        "disks": _disks,
        "damage": _damage,
    }[part](sizes)


def _kills(sizes: Sizes) -> list[Job]:
    jobs = []
    for store in ("s3", "local"):
        for command in COMMANDS:
            points, calls = (sizes.points, sizes.calls) if store == "local" else (sizes.s3_points, sizes.s3_calls)
            jobs += [
                Job(
                    f"kills {command.name} {store} {share}",
                    _killing(
                        command, trials.Limits(_least(command, points, sizes), _least(command, calls, sizes), share, 2)
                    ),
                    store,
                )
                for share in (0, 1)
            ]
    return jobs


def _least(command: Command, limit: int, sizes: Sizes) -> int:
    if not command.is_slow or sizes.slow == 0:
        return limit
    return sizes.slow if limit == 0 else min(limit, sizes.slow)


def _killing(command: Command, limits: trials.Limits) -> Work:
    def work(folder: Path, server: S3Server | None) -> list[Tally]:
        template = make_template(folder / "template", server)
        with trials.prepared(command, template, traced=has_strace()) as ready:
            return trials.kill_everywhere(ready, limits)

    return work


def _errors(sizes: Sizes) -> list[Job]:
    jobs = []
    for command in COMMANDS:
        limit = _least(command, sizes.errors, sizes)
        jobs += [
            Job(f"errors {command.name} {share}", _failing(command, trials.Limits(limit, limit, share, 2)))
            for share in (0, 1)
        ]
    return jobs


def _failing(command: Command, limits: trials.Limits) -> Work:
    def work(folder: Path, server: S3Server | None) -> list[Tally]:
        template = make_template(folder / "template", server)
        with trials.prepared(command, template, traced=has_strace()) as ready:
            return trials.fail_everywhere(ready, limits)

    return work


def _cuts(sizes: Sizes) -> list[Job]:
    return [Job("cuts", lambda folder, _server: cuts.run_cuts(folder, limit_mutants=sizes.mutants))]


def _crowd(sizes: Sizes) -> list[Job]:
    def work(size: crowd.Crowd, database: str) -> Work:
        return lambda folder, server: [
            crowd.run_crowd(make_template(folder / "template", server), size, database=database)
        ]

    together = crowd.Crowd(sizes.writers, sizes.readers, sizes.seconds)
    apart = crowd.Crowd(sizes.writers, sizes.readers, sizes.seconds, apart=True)
    jobs = [
        Job(f"crowd {store} {database} {index}", work(size, database), store, alone=True)
        for database in crowd.DATABASES
        for index, (store, size) in enumerate((("local", together), ("s3", together), ("s3", apart)))
    ]
    control: Work = lambda folder, server: [  # noqa: E731
        crowd.run_control(make_template(folder / "template", server), seconds=min(sizes.seconds, 10.0))
    ]
    return [*jobs, Job("crowd control", control, alone=True)]


def _way(sizes: Sizes) -> list[Job]:
    jobs = []
    for index, fault in enumerate(way.FAULTS):
        ways = way.Ways(faults=(fault,), limit_requests=sizes.requests, late_s=sizes.late_s)

        def work(folder: Path, server: S3Server | None, ways: way.Ways = ways) -> list[Tally]:
            template = make_template(folder / "template", server)
            with trials.prepared(command_named("promote"), template, traced=False) as ready:
                return way.fail_the_way(ready, ways)

        jobs.append(Job(f"way {index} {fault.name}", work, "s3"))
    return jobs


def _disks(sizes: Sizes) -> list[Job]:
    def apart(folder: Path, _server: S3Server | None) -> list[Tally]:
        found = disks.run_apart(folder, steps=sizes.steps)
        return found if isinstance(found, list) else [Tally("disks", f"not run: {found}", "local")]

    return [
        Job("disks", apart),
        Job("names", lambda folder, _server: [disks.longest_names(folder)]),
        Job("permission", lambda folder, server: [disks.no_permission(make_template(folder / "t", server))]),
        Job("scale", lambda f, server: [scale.many_versions(make_template(f / "t", server), versions=sizes.versions)]),
    ]


def _damage(sizes: Sizes) -> list[Job]:
    def work(flips: int) -> Work:
        return lambda folder, server: damage.damage_everything(
            make_template(folder / "template", server), flips=flips, seed=sizes.seed
        )

    return [Job("damage local", work(sizes.flips)), Job("damage s3", work(sizes.s3_flips), "s3")]


# -- running ---------------------------------------------------------------------------------------------------
def run_jobs(jobs: list[Job], folder: Path, server: S3Server, *, at_once: int) -> list[Tally]:
    """Run jobs in forked processes, some at once; return their rows, those of one row's shares merged."""
    running: dict[int, Job] = {}
    try:
        for job in [*(job for job in jobs if not job.alone), *(job for job in jobs if job.alone)]:
            while len(running) >= (1 if job.alone or any(each.alone for each in running.values()) else at_once):
                _wait_for_one(running)
            place = folder / job.name.replace(" ", "-")
            place.mkdir(parents=True)
            running[start_child(lambda job=job, place=place: _be_job(job, place, server))] = job  # type: ignore[misc]
        while running:
            _wait_for_one(running)
    except KeyboardInterrupt:  # what is done is kept
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        while running:
            _wait_for_one(running)
    merged: dict[tuple[str, str], Tally] = {}
    for job in jobs:
        for tally in _rows(folder / job.name.replace(" ", "-"), job):
            key = tally.what, tally.store
            if key in merged:
                merged[key].merge(tally)
            else:
                merged[key] = tally
    return list(merged.values())


def _be_job(job: Job, place: Path, server: S3Server) -> None:
    started = time.monotonic()
    try:
        rows = job.work(place, replace(server) if job.store == "s3" else None)
    except BaseException:
        broken = Tally(job.name.split()[0], job.name, job.store)
        broken.count("VIOLATION")
        broken.violations.append(f"{job.name} ended early: {traceback.format_exc()[-1500:]}")
        rows = [broken]
    (place / "rows.json").write_text(json.dumps([row.to_json() for row in rows]))
    print(f"{job.name}: {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201


def _wait_for_one(running: dict[int, Job]) -> None:
    pid, _ = os.waitpid(-1, 0)
    running.pop(pid, None)


def _rows(place: Path, job: Job) -> Iterator[Tally]:
    path = place / "rows.json"
    if not path.exists():
        yield Tally(job.name.split()[0], f"{job.name}: stopped early, no result", job.store)
        return
    for row in json.loads(path.read_text()):
        yield Tally.from_json(row)
