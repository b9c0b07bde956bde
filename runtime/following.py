"""Follow a channel: look whether its pointer moved, pull what is new, keep what is here while nobody answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from modelreg.registry.errors import ModelregError, UsageError
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled, PullRequest

_PATIENCE = 2
"""So many times the interval lie between two tries after a failure: not more, or hosts are late when it is over."""


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

    def recovered(self) -> None:
        """Tell that what had failed works again."""
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
    raise _no_release(source, request)


def preview_pull(source: Source, folder: PullFolder, request: PullRequest) -> Pulled:
    """
    Return what a pull would come to; nothing is written. Its bytes are those that would be fetched, and were here.

    Raises:
        ModelregError: As `pull_once`.
    """
    news = source.connect().poll_pointer(request.model, request.channel, mark="")
    if news is None:
        raise _no_release(source, request)
    return folder.preview(source.open(), request, news.pointer)


def _no_release(source: Source, request: PullRequest) -> ModelregError:
    from modelreg.registry.suggestions import no_active_release  # noqa: PLC0415 - what is wrong needs it

    return no_active_release(request.model, request.channel, served=source.open().list_channels())


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
    Follow a channel until `wait` raises. A failure is told once, however it is worded, and tried again; so is its end.

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
    seen, trouble = "", None
    while True:
        try:
            pulled = pull_once(source, folder, request, progress=progress)
        except UsageError:
            raise
        except ModelregError as error:
            # One outage has many words (refused, reset, timed out) and one piece of advice.
            same, trouble = trouble, (type(error), error.hint() or str(error))
            if trouble != same:
                told.failed(error)
        else:
            if trouble is not None and seen:
                told.recovered()
            trouble = None
            if pulled.pointer.txn != seen or pulled.changed:
                seen = pulled.pointer.txn
                told.pulled(pulled)
        wait(next_wait_s(interval_s) if trouble is None else next_wait_s(_PATIENCE * interval_s))


def next_wait_s(about_s: float) -> float:
    """Return how long to wait: never quite the same, so that many hosts do not ask at once."""
    return about_s * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
