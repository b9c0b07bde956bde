"""Hold a lease on what this host serves, so that `show` tells of it and `gc` leaves it alone.

`modelreg pull --watch` does it by itself; a server that reads the store does it with a `LeaseKeeper`:

    keeper = LeaseKeeper(open_storage("s3://bucket/prefix"), instance="api-7", warn=logger.warning)
    with keeper:
        keeper.hold(pointer)       # after each switch, and every minute or so: it writes only when that is due
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import ModelregError
from modelreg.registry.leases import TTL_S, Holder, Lease, hold, lease_name
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.notes import Notes

_RENEWALS = 3
"""So many times in its life a lease is renewed: one may fail, and it lives on."""
_LONGEST_TEXT = 200


def describe_holder(instance: str = "") -> Holder:
    """
    Return who this process is in a lease.

    Args:
        instance: What tells it from others of this host, and is the same after a restart: a folder, a server's name.
            Empty: its process id, so that after a restart the old lease has to run out.
    """
    name = instance or f"pid {os.getpid()}"
    return Holder(host=_shorten(socket.gethostname()), pid=os.getpid(), instance=_shorten(name))


def _shorten(text: str) -> str:
    """Return a text as a lease keeps it; of two long ones that begin alike no one is taken for the other."""
    if len(text) <= _LONGEST_TEXT:
        return text
    digest = sha256_hex(text.encode(errors="surrogatepass"))[:16]
    return f"{text[: _LONGEST_TEXT - len(digest) - 1]}~{digest}"


class LeaseKeeper:
    """
    Holds a lease on one channel's release at a time. Serving never fails over it: what goes wrong is told, once.

    Args:
        notes: The store, or what gives it when it is first needed.
        instance: As for `describe_holder`.
        ttl_s: How long the lease counts when this process dies without giving it back.
        warn: Told why no lease can be held; told again only after one could be.
        clock: Seconds that only go forward, to know when a renewal is due. Whether a lease ran out, the store tells.
    """

    def __init__(
        self,
        notes: Notes | Callable[[], Notes],
        *,
        instance: str = "",
        ttl_s: float = TTL_S,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notes = notes
        self._holder = describe_holder(instance)
        self._ttl_s = ttl_s
        self._warn = warn
        self._clock = clock
        self._lease: Lease | None = None
        self._name = ""
        self._tried_s: float | None = None
        self._is_failing = False

    @property
    def lease(self) -> Lease | None:
        """Return the lease as it was written last, None where there is none."""
        return self._lease

    def hold(self, pointer: Pointer) -> None:
        """Say that this process serves what `pointer` says; writes if that is new, or it is time to renew."""
        now_s = self._clock()
        is_known = self._lease is not None and _is_on(self._lease, pointer)
        is_due = self._tried_s is None or now_s - self._tried_s >= self._ttl_s / _RENEWALS
        if not is_due and (is_known or self._is_failing):
            return  # what failed is tried again when a renewal would be due, not at every look
        self._tried_s = now_s
        name = lease_name(pointer.model, pointer.channel, self._holder.key)
        if self._name not in ("", name):
            self.drop()  # it was on another channel
            self._tried_s = now_s
        self._name = name  # before it is written: who is interrupted in between gives it back all the same
        try:
            self._lease = hold(self._open(), pointer, self._holder, ttl_s=self._ttl_s)
        except ModelregError as error:
            self._tell(error)
        else:
            self._is_failing = False

    def drop(self) -> None:
        """Give the lease back: the host serves nothing any more. One in a store that is away runs out by itself."""
        if self._name and not self._is_failing:
            with suppress(ModelregError):
                self._open().remove_note(self._name)
        self._lease, self._name, self._tried_s = None, "", None

    def __enter__(self) -> LeaseKeeper:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.drop()

    def _open(self) -> Notes:
        if callable(self._notes):
            self._notes = self._notes()
        return self._notes

    def _tell(self, error: ModelregError) -> None:
        if not self._is_failing:
            self._warn(f"no lease is held, so neither `show` nor `gc` knows of this host: {error}")
        self._is_failing = True


def _is_on(lease: Lease, pointer: Pointer) -> bool:
    held = (lease.model, lease.channel, lease.generation, lease.release)
    return held == (pointer.model, pointer.channel, pointer.generation, pointer.release)
