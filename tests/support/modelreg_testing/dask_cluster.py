"""A Dask cluster of real processes on this host: a scheduler, and workers that offer resources."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_START_S = 60.0


@dataclass
class ClusterProcesses:
    """The processes of a cluster, by name; `url` is what `--executor` takes."""

    folder: Path
    port: int
    scheduler: subprocess.Popen[bytes]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Return the scheduler's address in Dask's spelling."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Return the scheduler's address as `build --executor` takes it."""
        return f"dask://127.0.0.1:{self.port}"

    def start(
        self,
        name: str,
        resources: str,
        *,
        env: Mapping[str, str] | None = None,
        nanny: bool = False,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a worker of two threads that offers `resources`; it is there when `wait_for` says so."""
        command = [
            *(sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name),
            *("--resources", resources, "--nthreads", "2", "--no-dashboard", "--memory-limit", "0"),
            *("--local-directory", str(self.folder / name), "--nanny" if nanny else "--no-nanny"),
        ]
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            command, env=_environment(env), cwd=cwd, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        self.workers[name] = process
        return process

    def wait_for(self, *names: str) -> None:
        """Wait until these workers are known to the scheduler."""
        from modelreg.builders.elsewhere.cluster import Cluster

        deadline = time.monotonic() + _START_S
        with Cluster.connect(self.address) as cluster:
            while not {*names} <= {worker.name for worker in cluster.workers()}:
                assert time.monotonic() < deadline, f"{names} did not start: {self.logs()}"
                time.sleep(0.1)

    def logs(self) -> str:
        """Return what all processes wrote."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def kill(self, name: str) -> None:
        """Kill a worker, its nanny too, and nothing that they started: the kernel has to end that."""
        process = self.workers.pop(name)
        for pid in [process.pid, *_children_named(process.pid, "multiprocessing")]:
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for process in [*self.workers.values(), self.scheduler]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.workers.clear()


@contextmanager
def dask_cluster(folder: Path) -> Iterator[ClusterProcesses]:
    """Run a scheduler; workers are started by the caller."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", str(port), "--no-dashboard"]
    with (folder / "scheduler.log").open("wb") as log:
        scheduler = subprocess.Popen(
            [*command, "--host", "127.0.0.1"], env=_environment(), stdout=log, stderr=log, start_new_session=True
        )
    cluster = ClusterProcesses(folder, port, scheduler)
    try:
        yield cluster
    finally:
        cluster.stop()


def _environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MODELREG_")}
    return {**inherited, "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False", **(extra or {})}


def _children_named(pid: int, word: str) -> list[int]:
    """Return the direct children of a process that have a word in their command line."""
    return [child.pid for child in psutil.Process(pid).children() if any(word in each for each in child.cmdline())]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True)
class HeldPython:
    """An interpreter that waits before ONNX Runtime builds, as long as the file `hold` is there."""

    path: Path
    hold: Path
    began: Path

    @classmethod
    def write(cls, folder: Path) -> HeldPython:
        """Write it into a new folder; it holds nothing yet."""
        folder.mkdir()
        made = cls(folder / "python", folder / "hold", folder / "began")
        made.path.write_text(
            "#!/bin/sh\n"
            f'case "$*" in */builders/ort.py) echo $$ >>{made.began}\n'
            f"  while [ -e {made.hold} ]; do sleep 0.05; done ;;\n"
            "esac\n"
            f'exec {sys.executable} "$@"\n'
        )
        made.path.chmod(0o755)
        return made

    def pids(self) -> list[int]:
        """Return the processes that began to build."""
        return [int(line) for line in self.began.read_text().split()] if self.began.exists() else []

    def wait_for_build(self, count: int = 1) -> int:
        """Wait until so many builds have begun; return the process of the last one."""
        deadline = time.monotonic() + _START_S
        while len(self.pids()) < count:
            assert time.monotonic() < deadline, "no build began"
            time.sleep(0.02)
        return self.pids()[-1]
