"""Work that runs ahead in threads while its results are taken in order, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_ahead(jobs: Iterable[Callable[[], T]], *, workers: int) -> Iterator[T]:
    """
    Yield the result of each job, in order, while later ones are under way.

    A job is taken from `jobs` only when there is a worker for it, so what it carries is in memory at most so many
    times. The first error is raised in its place; what was not begun then never is.
    """
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="modelreg-s3")
    under_way: deque[Future[T]] = deque()
    try:
        for job in jobs:
            if len(under_way) >= workers:
                yield under_way.popleft().result()
            under_way.append(pool.submit(job))
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
