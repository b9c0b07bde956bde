"""Building cells on the workers of a Dask cluster, chosen by their resources."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Sequence

from modelreg.builders.elsewhere.answers import Answer, describe_skew, own_version
from modelreg.builders.elsewhere.cluster import Cluster, Run, TooManyDeathsError
from modelreg.builders.elsewhere.parcels import Parcel
from modelreg.builders.elsewhere.resources import (
    ClusterWorker,
    Resources,
    alternatives,
    choose_resources,
    describe_missing,
    offering,
)
from modelreg.builders.filling import MadeCell
from modelreg.builders.interface import Cell, OnProgress
from modelreg.builders.materials import CellFiles, KnownMaterials
from modelreg.builders.planning import PreparedCell
from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import BuildError, IntegrityError, NotFoundError, WorkerError
from modelreg.registry.regular_files import write_whole
from modelreg.registry.storage.interface import Storage
from modelreg.registry.toolchains.pipes import raise_if_interrupted
from modelreg.registry.words import Json

DEFAULT_RETRIES = 2
DEFAULT_WAIT_S = 60.0
_TICK_S = 0.25


_LOOK = "Look into their logs and into the memory of their hosts."


class _Attempts:
    """The attempts at one cell: where it is built now, and which workers died at it."""

    def __init__(self, cell: Cell, progress: OnProgress) -> None:
        self.cell = cell
        self.progress = progress
        self.name = uuid.uuid4().hex
        self.dead: list[str] = []
        self.given_up = 0
        self.address = ""
        self._worker = ""

    def take(self, told: Json) -> None:
        """Take in what a worker tells."""
        if told["kind"] == "step":
            self.progress(told["fraction"], told["doing"])
            return
        if self.address:  # it died, and was replaced before its absence was seen
            self.bury()
        self.address, self._worker = told["address"], told["on"]
        self.progress(0.0, f"on worker {self._worker}")

    def bury(self) -> None:
        """Note that the worker which built it died."""
        self.progress(None, f"worker {self._worker} died")
        self.dead.append(self._worker)
        self.address = ""


class DaskExecutor:
    """
    Sends each cell to a worker that has what it needs; docs/decisions/0059 says why this way.

    Args:
        cluster: The connection; whoever made it closes it.
        retries: How often a cell is tried again after the worker that built it died.
        wait_s: How long to wait for a worker that has what a cell needs.
    """

    def __init__(self, cluster: Cluster, *, retries: int = DEFAULT_RETRIES, wait_s: float = DEFAULT_WAIT_S) -> None:
        self._cluster = cluster
        self._retries = retries
        self._wait_s = wait_s
        self._greeted: set[str] = set()
        self._greeting = threading.Lock()

    def require_ready(self, cells: Sequence[PreparedCell], storage: Storage) -> None:
        """
        Greet every worker that could get one of these cells.

        Raises:
            BuildError: A worker has another modelreg, or does not reach the store.
            SchedulerGoneError: The connection was lost.
        """
        workers = self._cluster.workers()
        wanted = [asked for cell in cells for asked in alternatives(cell.request.cell)]
        able = {worker.address: worker for asked in wanted for worker in offering(workers, asked)}
        self._greet(list(able.values()), storage)

    def make(
        self, prepared: PreparedCell, files: CellFiles, known: KnownMaterials, storage: Storage, progress: OnProgress
    ) -> MadeCell:
        """Build one cell on a worker; see `CellExecutor`."""
        progress(None, "packing")
        parcel = Parcel.pack(prepared, known, storage)
        order = {"version": own_version(), "parcel": parcel.to_json(), "retries": self._retries}
        answer, dead = self._build(_Attempts(prepared.request.cell, progress), order, storage)
        _keep_log(answer, dead, files, storage)
        if answer.made is None:
            raise answer.error or BuildError("the worker answered nothing")
        progress(0.99, "checking")
        _require_stored(answer.made, storage)
        _keep_caches(answer, prepared, storage)
        return answer.made

    def _build(self, attempts: _Attempts, order: Json, storage: Storage) -> tuple[Answer, list[str]]:
        """Send it to a worker until one answers; return the answer, and the workers that died at it."""
        while True:
            asked = self._await_worker(attempts, storage)
            run = self._cluster.submit(attempts.name, order, asked)
            try:
                body = self._follow(run, attempts, asked)
            except TooManyDeathsError as error:
                attempts.given_up += 1
                if attempts.given_up > self._retries:
                    raise WorkerError(f"the workers that built it died: {error}", hint=_LOOK) from error
                continue
            finally:
                run.cancel()  # what is done is let go, what is not is stopped
            if body is not None:
                return read_answer(body), attempts.dead or list(body.get("dead", ()))

    def _await_worker(self, attempts: _Attempts, storage: Storage) -> dict[str, float]:
        """Return what to ask for, once a worker has it."""
        deadline = time.monotonic() + self._wait_s
        while True:
            raise_if_interrupted()
            workers = self._cluster.workers()
            asked = choose_resources(attempts.cell, workers)
            if asked is not None:
                self._greet(offering(workers, asked), storage)
                return asked
            if time.monotonic() > deadline:
                raise BuildError(
                    f"{describe_missing(attempts.cell, workers)} (waited {self._wait_s:g} s)",
                    hint="Start a worker with `dask worker --resources NAME=1`, or wait longer: --wait-for-workers S.",
                )
            attempts.progress(None, "waiting for a worker that has what it needs")
            time.sleep(_TICK_S)

    def _follow(self, run: Run, attempts: _Attempts, asked: Resources) -> Json | None:
        """Tell how it goes; return what came of it, or None where no worker is left that could do it."""
        attempts.progress(None, "queued")
        while True:
            raise_if_interrupted()
            body = run.wait(_TICK_S)
            if body is not None:
                return body
            while not run.news.empty():
                attempts.take(run.news.get())
            if attempts.address and not self._is_there(attempts.address):
                attempts.bury()
                if len(attempts.dead) > self._retries:
                    raise WorkerError(f"the workers that built it died: {', '.join(attempts.dead)}", hint=_LOOK)
            if not attempts.address and not offering(self._cluster.workers(), asked):
                return None

    def _is_there(self, address: str) -> bool:
        """Return whether a worker is; one that is new may not have been seen yet."""
        return any(
            worker.address == address for fresh in (False, True) for worker in self._cluster.workers(fresh=fresh)
        )

    def _greet(self, workers: Sequence[ClusterWorker], storage: Storage) -> None:
        with self._greeting:
            new = [worker for worker in workers if worker.address not in self._greeted]
            if not new:
                return
            nonce = storage.put_bytes(os.urandom(32)).digest
            try:
                body = {"version": own_version(), "store": storage.url, "nonce": nonce}
                answers = self._cluster.greet(new, body)
                for worker in new:
                    _require_fit(worker, answers.get(worker.address), storage)
            finally:
                storage.delete_blob(nonce)  # nobody else knows it
            self._greeted.update(worker.address for worker in new)


def _require_fit(worker: ClusterWorker, answer: Json | None, storage: Storage) -> None:
    if answer is None:
        return  # it left in between
    if "error" in answer:
        raise BuildError(
            f"worker {worker.name} cannot run modelreg {own_version()['modelreg']}: {answer['error']}",
            hint="Install the same modelreg there, or let it not offer what these cells need.",
        )
    skew = describe_skew(answer["version"], where=f"worker {worker.name}")
    if skew:
        raise BuildError(skew, hint="Install the same modelreg on both.")
    _require_same_store(worker, answer, storage)


def _require_same_store(worker: ClusterWorker, answer: Json, storage: Storage) -> None:
    hint = "Workers must reach the registry's store: in S3 (`modelreg init --store s3://…`), or in a shared folder."
    if "reason" in answer:
        raise BuildError(f"worker {worker.name} does not reach the store {storage.url}: {answer['reason']}", hint=hint)
    note = str(answer["note"])
    try:
        storage.read_blob(note)
    except NotFoundError as error:
        raise BuildError(
            f"what worker {worker.name} writes into {storage.url} is not seen here: it is another place there",
            hint=hint,
        ) from error
    storage.delete_blob(note)


def read_answer(body: Json) -> Answer:
    """Return what a worker answered; raises BuildError where it is something else."""
    try:
        return Answer.from_json(body)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BuildError(
            f"a worker answered something else than what came of a cell: {type(error).__name__}: {error}"[:300]
        ) from error


def _require_stored(made: MadeCell, storage: Storage) -> None:
    """Read all that a worker says it stored: an engine without its plan must not be recorded."""
    for file in (*made.files, *made.variant_files, *made.timing_cache):
        try:
            size_bytes = storage.verify_blob(file.digest)
        except (NotFoundError, IntegrityError) as error:
            reason = f"{file.path} is not in the store as the worker says: {error}"
            raise BuildError(reason, hint=error.hint()) from error
        if size_bytes != file.size_bytes:
            raise BuildError(f"{file.path} has {size_bytes} bytes in the store, the worker says {file.size_bytes}")


def _keep_log(answer: Answer, dead: Sequence[str], files: CellFiles, storage: Storage) -> None:
    """Put the worker's log in the place of what was begun here, and say which workers died before."""
    if answer.log is not None:
        files.log.write_bytes(storage.read_blob(answer.log.digest))
    with files.log.open("a") as log:
        log.writelines(f"worker {worker} died at it before\n" for worker in dead)
        if answer.error is not None and answer.log is None:
            log.write(f"{answer.error}\n")


def _keep_caches(answer: Answer, prepared: PreparedCell, storage: Storage) -> None:
    """Write the caches that the user named, as a build on this host does."""
    assert answer.made is not None
    options = prepared.request.options.tensorrt
    pairs = ((options.timing_cache, answer.made.timing_cache), (options.calibration_cache, answer.calibration_cache))
    for path, stored in pairs:
        if path is not None and stored:
            first: StoredFile = stored[0]
            write_whole(path, storage.read_blob(first.digest))
