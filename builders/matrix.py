"""Filling several cells side by side, each in child processes of its own, none hurt by another's failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from modelreg.builders.cells import CellOutcome, build_cell
from modelreg.builders.executors import CellExecutor, LocalExecutor
from modelreg.builders.interface import OnProgress
from modelreg.builders.planning import CellRequest, prepare_cell
from modelreg.registry.database import Database
from modelreg.registry.errors import ModelregError
from modelreg.registry.storage.interface import Storage
from modelreg.registry.toolchains.pipes import interrupted_by

Result = CellOutcome | ModelregError
OpenStep = Callable[[CellRequest], AbstractContextManager[OnProgress]]
"""Called when a cell begins; gives what its progress is told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where cells are built: the registry, who asks for it, and who does it."""

    database: Database
    storage: Storage
    actor: str
    executor: CellExecutor = field(default_factory=LocalExecutor)


def fill_cells(
    requests: Sequence[CellRequest], workplace: Workplace, *, jobs: int, open_step: OpenStep
) -> list[Result]:
    """
    Build every cell, at most `jobs` at once; return what came of each, in the order given.

    Cells that share a variant wait for the first of them, which makes it. A failed cell stops no other one.

    Raises:
        KeyboardInterrupt: After all children were ended and their cells recorded as failed.
    """
    if jobs == 1 or len(requests) == 1:
        return [_fill(request, workplace, open_step) for request in requests]
    stop = threading.Event()
    waiting = _lines(requests)
    results: dict[int, Result] = {}
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="cell") as pool:

        def start(index: int) -> Future[Result]:
            return pool.submit(_fill_interruptibly, requests[index], workplace, open_step, stop)

        running = {start(line[0]): line for line in waiting}
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index, *others = running.pop(future)
                    results[index] = future.result()
                    running.update({start(other): [other] for other in others})
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [results[index] for index in range(len(requests))]


def _lines(requests: Sequence[CellRequest]) -> list[list[int]]:
    """Return the cells in lines: the first of each goes at once, the others when it has made their variant."""
    lines: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        digest = prepare_cell(request).recipe.variant_digest
        key = f"{request.cell.version.source.digest} {digest}" if digest else str(index)
        lines.setdefault(key, []).append(index)
    return list(lines.values())


def _fill(request: CellRequest, workplace: Workplace, open_step: OpenStep) -> Result:
    try:
        with open_step(request) as tell:
            return build_cell(
                request,
                database=workplace.database,
                storage=workplace.storage,
                progress=tell,
                actor=workplace.actor,
                executor=workplace.executor,
            )
    except ModelregError as error:
        return error


def _fill_interruptibly(
    request: CellRequest, workplace: Workplace, open_step: OpenStep, stop: threading.Event
) -> Result:
    with interrupted_by(stop):
        return _fill(request, workplace, open_step)
