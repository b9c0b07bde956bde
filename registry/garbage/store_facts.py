"""What the store itself says is needed: pointers and histories of every channel, leases, pins. No database."""

from __future__ import annotations

from dataclasses import dataclass

from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import IntegrityError, NotFoundError
from modelreg.registry.garbage.needs import Need, StoreFacts
from modelreg.registry.leases import LeaseList, read_leases
from modelreg.registry.pins import Pin, list_pins
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.rules import manifest_files

_LOOK_BACK = 50
"""Of so many generations for each release to keep, the history is read: two releases may take turns for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReading:
    """The facts, and what they were read from. `pointers` has an entry, None perhaps, for every channel."""

    facts: StoreFacts
    pointers: dict[tuple[str, str], Pointer | None]
    leases: LeaseList
    pins: tuple[Pin, ...]


class StoreReader:
    """Reads what a store says; manifests never change, so each is read once."""

    def __init__(self, storage: Storage, *, keep: int) -> None:
        self._storage = storage
        self._keep = keep
        self._manifests: dict[str, tuple[StoredFile, ...]] = {}

    def read(self) -> StoreReading:
        """
        Return what is needed now.

        Raises:
            IntegrityError: A pointer, a document, a manifest or a pin cannot be read: nobody knows what is needed.
        """
        releases: dict[str, Need] = {}
        pointers: dict[tuple[str, str], Pointer | None] = {}
        for model, channel in self._storage.list_channels():
            pointer = self._storage.read_pointer(model, channel)
            pointers[model, channel] = pointer
            for release in self._last_releases(model, channel, pointer):
                releases[release] = Need.CHANNEL
        leases = read_leases(self._storage)
        if leases.unreadable:
            raise IntegrityError(
                f"{leases.unreadable[0]} of the store is no lease that this modelreg can read",
                hint="A newer modelreg wrote it, perhaps: upgrade this one. Else remove it: modelreg leases drop NAME",
            )
        for lease in leases.live:
            releases.setdefault(lease.release, Need.LEASE)
        pins = tuple(list_pins(self._storage))
        facts = StoreFacts(
            releases=releases,
            manifests={release: self._files(release, need) for release, need in releases.items()},
            pinned={(pin.model, pin.version) for pin in pins},
        )
        return StoreReading(facts=facts, pointers=pointers, leases=leases, pins=pins)

    def _last_releases(self, model: str, channel: str, pointer: Pointer | None) -> list[str]:
        """Return what a channel may need again: reserved, served, next to roll back to, and the last ones before."""
        served = 0 if pointer is None else pointer.generation
        generations = self._storage.list_generations(model, channel)
        found = [self._release(model, channel, number) for number in generations if number > served]
        if pointer is None:
            return found
        found.append(pointer.release)
        if pointer.rolls_back_to is not None:
            found.append(self._release(model, channel, pointer.rolls_back_to))
        last: dict[str, None] = {}
        past = [number for number in generations if number <= served]
        for number in reversed(past[-self._keep * _LOOK_BACK :]):
            last[self._release(model, channel, number)] = None
            if len(last) >= self._keep:
                break
        return [*found, *last]

    def _release(self, model: str, channel: str, generation: int) -> str:
        return self._storage.read_history(model, channel, generation).release

    def _files(self, release: str, need: Need) -> tuple[StoredFile, ...]:
        if release not in self._manifests:
            try:
                manifest = self._storage.read_manifest(release)
            except NotFoundError:
                if need is Need.LEASE:
                    return ()  # of another store, or of long ago
                raise IntegrityError(f"release {release}, which a channel needs, is not in the store") from None
            self._manifests[release] = manifest_files(manifest, where=f"of release {release}")
        return self._manifests[release]

    def files_of(self, release: str) -> tuple[StoredFile, ...]:
        """Return the files of any release, none where its manifest cannot be read: that one is no use to anybody."""
        try:
            return self._files(release, Need.LEASE)
        except IntegrityError:
            return ()
