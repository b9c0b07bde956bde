"""Follow a channel: look whether its pointer moved, pull what is new, keep what is here while nobody answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from modelreg.registry.errors import IntegrityError, ModelregError, NotFoundError, StorageError, UsageError
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import News, Progress, Storage, no_progress
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import Pulled, PullRequest

_PATIENCE = 2
"""So many times the interval lie between two tries after a failure: not more, or hosts are late when it is over."""
_DAMAGED_HINT = "Run `modelreg verify` where the registry is; what is current here stays so."


class Source(Protocol):
    """Where releases come from."""

    def connect(self) -> Storage:
        """Return the store for a look at the pointer; as little as possible is asked of it."""
        ...

    def open(self) -> Storage:
        """Return the store, known to be one that can be read."""
        ...


class StoreAt:
    """The store at a URL, as a source."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Storage:
        """Return the store for a look at a pointer."""
        from modelreg.registry.storage.open import connect_storage  # noqa: PLC0415 - a source may be an open store

        return connect_storage(self.url)

    def open(self) -> Storage:
        """Return the store, known to be one."""
        from modelreg.registry.storage.open import open_storage  # noqa: PLC0415 - as above

        return open_storage(self.url)


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
    Pull what the channel serves now; what is here already is read whole, and mended where it is damaged.

    Raises:
        NotFoundError: The channel has no release, or none for what is wanted.
        IntegrityError: What the store gave does not match, or the channel went back.
        StorageError: The store or the folder failed.
        UsageError: The folder holds something else.
    """
    return _bring(source, folder, request, _look(source, request), progress=progress)


def preview_pull(source: Source, folder: PullFolder, request: PullRequest) -> Pulled:
    """
    Return what a pull would come to; nothing is written. Its bytes are those that would be fetched, and were here.

    Raises:
        ModelregError: As `pull_once`.
    """
    news = _look(source, request)
    with _advising():
        return folder.preview(source.open(), request, news.pointer)


def _look(source: Source, request: PullRequest) -> News:
    news = _look_for_news(source, request, mark="")
    assert news is not None
    return news


def _look_for_news(source: Source, request: PullRequest, *, mark: str) -> News | None:
    """Return what the channel serves, None where that is what `mark` stands for; raises as `pull_once`."""
    try:
        return source.connect().poll_pointer(request.model, request.channel, mark=mark)
    except NotFoundError:
        from modelreg.registry.suggestions import no_active_release  # noqa: PLC0415 - what is wrong needs it

        raise no_active_release(request.model, request.channel, served=source.open().list_channels()) from None
    except IntegrityError:
        source.open()  # if a web server or the like answers, this says that there is no store of ours
        with _advising():
            raise


def _bring(source: Source, folder: PullFolder, request: PullRequest, news: News, *, progress: Progress) -> Pulled:
    with _advising():
        return folder.pull(source.open(), request, news.pointer, mark=news.mark, progress=progress)


def hold_nothing(_pointer: Pointer) -> None:
    """Hold no lease."""


@contextmanager
def _advising() -> Iterator[None]:
    """Say where a hint to verify or to call the doctor can be followed: not on a host without a registry."""
    try:
        yield
    except IntegrityError as error:
        if error.hint() == IntegrityError.default_hint:
            raise IntegrityError(str(error), hint=_DAMAGED_HINT) from None
        if "`modelreg doctor" in error.hint():
            hint = f"Where the registry is, {error.hint().rstrip('.')}; what is current here stays so."
            raise IntegrityError(str(error), hint=hint) from None
        raise


@dataclass(kw_only=True)
class _Follower:
    """Brings what is new, look by look. `refused` is the mark of what could not be brought, `pauses` says how many
    looks go by before that is tried again: each time its files may come over the network."""

    source: Source
    folder: PullFolder
    request: PullRequest
    progress: Progress
    has_checked: bool = False
    refused: str = ""
    pauses: int = 0

    def look(self) -> Pulled | None:
        """Return what is current; None where what is new failed a moment ago. The first look reads every byte here."""
        mark = self.folder.find_mark(self.request) if self.has_checked else ""
        news = _look_for_news(self.source, self.request, mark=mark)
        if news is None:
            return self.folder.current(self.request)
        if news.mark == self.refused and self.pauses:
            self.pauses -= 1
            return None
        try:
            pulled = _bring(self.source, self.folder, self.request, news, progress=self.progress)
        except (IntegrityError, NotFoundError):
            self.refused, self.pauses = news.mark, _PATIENCE - 1
            raise
        self.has_checked, self.refused = True, ""
        return pulled


def follow(
    source: Source,
    folder: PullFolder,
    request: PullRequest,
    *,
    told: Told,
    wait: Callable[[float], None],
    interval_s: float,
    hold: Callable[[Pointer], None] = hold_nothing,
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
        interval_s: About how often to look; less often at a store or a disk that fails.
        hold: Told after each look what is current here, whether or not the store could be read.
        progress: Told of bytes.

    Raises:
        UsageError: The request can never succeed as it is.
    """
    follower = _Follower(source=source, folder=folder, request=request, progress=progress)
    seen, trouble = "", None
    held: Pointer | None = None
    while True:
        wait_s = interval_s
        try:
            pulled = follower.look()
        except UsageError:
            raise
        except ModelregError as error:
            # One outage has many words (refused, reset, timed out) and one piece of advice.
            same, trouble = trouble, (type(error), error.hint() or str(error))
            if trouble != same:
                told.failed(error)
            if isinstance(error, StorageError):
                wait_s = _PATIENCE * interval_s
        else:
            if pulled is not None:
                held = pulled.pointer
                if trouble is not None and seen:
                    told.recovered()
                trouble = None
                if pulled.pointer.txn != seen or pulled.changed:
                    seen = pulled.pointer.txn
                    told.pulled(pulled)
        if held is not None:
            hold(held)
        wait(next_wait_s(wait_s))


def next_wait_s(about_s: float) -> float:
    """Return how long to wait: never quite the same, so that many hosts do not ask at once."""
    return about_s * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
