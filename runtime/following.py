"""Follow a channel: look whether its pointer moved, pull what is new, keep what is here while nobody answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from modelreg.registry.errors import ModelregError, UsageError
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled, PullRequest

_LONGEST_WAIT_S = 60.0


class Source(Protocol):
    """Where releases come from."""

    def connect(self) -> Storage:
        """Return the store for a look at the pointer; as little as possible is asked of it."""
        ...

    def open(self) -> Storage:
        """Return the store, known to be one that can be read."""
        ...


class Told(Protocol):
    """Who is told how it goes."""

    def pulled(self, pulled: Pulled) -> None:
        """Tell of a release that is current now."""
        ...

    def failed(self, error: ModelregError) -> None:
        """Tell of a failure that is new; what was current stays so."""
        ...


def pull_once(source: Source, folder: PullFolder, request: PullRequest, *, progress: Progress = no_progress) -> Pulled:
    """
    Pull what the channel serves now; where it is here already, the store is asked no more than whether it is news.

    Raises:
        NotFoundError: The channel has no release, or none for what is wanted.
        IntegrityError: What the store gave does not match, or the channel went back.
        StorageError: The store or the folder failed.
    """
    mark = folder.find_mark(request)
    news = source.connect().poll_pointer(request.model, request.channel, mark=mark)
    if news is not None:
        return folder.pull(source.open(), request, news.pointer, mark=news.mark, progress=progress)
    if mark:
        return folder.current(request)
    from modelreg.registry.suggestions import no_active_release  # noqa: PLC0415 - what is wrong needs it

    raise no_active_release(request.model, request.channel, served=source.open().list_channels())


def follow(
    source: Source,
    folder: PullFolder,
    request: PullRequest,
    *,
    told: Told,
    wait: Callable[[float], None],
    interval_s: float,
    progress: Progress = no_progress,
) -> None:
    """
    Follow a channel until `wait` raises. A failure is told once, and tried again, less often the longer it lasts.

    Args:
        source: The store.
        folder: Where releases go.
        request: What to follow.
        told: Hears of what is new.
        wait: Waits so many seconds.
        interval_s: About how often to look.
        progress: Told of bytes.

    Raises:
        UsageError: The request can never succeed as it is.
    """
    seen, failures, last = "", 0, ""
    while True:
        try:
            pulled = pull_once(source, folder, request, progress=progress)
        except UsageError:
            raise
        except ModelregError as error:
            failures += 1
            if str(error) != last:
                last = str(error)
                told.failed(error)
        else:
            failures, last = 0, ""
            if pulled.pointer.txn != seen or pulled.changed:
                seen = pulled.pointer.txn
                told.pulled(pulled)
        wait(next_wait_s(interval_s, failures=failures))


def next_wait_s(interval_s: float, *, failures: int) -> float:
    """Return how long to wait: about the interval, so that many hosts do not ask at once, and longer after failures."""
    longest = max(interval_s, _LONGEST_WAIT_S)
    return float(min(interval_s * 2 ** min(failures, 16), longest) * random.uniform(0.8, 1.2))  # noqa: S311
