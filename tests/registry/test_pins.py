"""Pins: set once, lifted once, and never forgotten for what cannot be read."""

from __future__ import annotations

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import ConflictError, IntegrityError
from modelreg.registry.pins import Pin, find_pin, lift_pin, list_pins, set_pin
from modelreg.registry.records import VersionRecord
from modelreg.registry.storage.interface import Storage
from modelreg_testing.records import make_version
from modelreg_testing.storage import MemoryStorage


@pytest.fixture
def store() -> MemoryStorage:
    return MemoryStorage()


def pin(store: Storage, version: VersionRecord, *, message: str = "") -> tuple[Pin, bool]:
    return set_pin(store, version, message=message, actor="ada", at=utc_now())


def test_a_pin_says_who_when_and_why(store: MemoryStorage) -> None:
    version = make_version()
    made, changed = pin(store, version, message="certified\nfor ü")
    assert changed
    assert find_pin(store, version) == made
    assert (made.actor, made.message, made.source) == ("ada", "certified\nfor ü", version.source.digest)


def test_pinning_again_changes_nothing_unless_there_is_more_to_say(store: MemoryStorage) -> None:
    version = make_version()
    first, _ = pin(store, version, message="one")
    assert pin(store, version) == (first, False)
    assert pin(store, version, message="two")[1]


def test_pins_are_listed_by_model_and_number(store: MemoryStorage) -> None:
    version = make_version()
    for number in (10, 9):
        pin(store, version._replace(number=number))
    pin(store, version._replace(model="alexnet"))
    assert [(each.model, each.version) for each in list_pins(store)][1:] == [(version.model, 9), (version.model, 10)]
    assert [each.version for each in list_pins(store, model=version.model)] == [9, 10]


def test_a_pin_is_lifted_once(store: MemoryStorage) -> None:
    version = make_version()
    pin(store, version)
    assert lift_pin(store, version.model, version.number)
    assert not lift_pin(store, version.model, version.number)
    assert list_pins(store) == []


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 9}', b"\xff"])
def test_a_pin_that_cannot_be_read_is_an_error_and_not_no_pin(store: MemoryStorage, data: bytes) -> None:
    version = make_version()
    made, _ = pin(store, version)
    store.remove_note(made.name)
    assert store.write_note(made.name, data, replaces=None)
    for look in (lambda: list_pins(store), lambda: find_pin(store, version), lambda: pin(store, version)):
        with pytest.raises(IntegrityError, match="is no pin"):
            look()
    assert lift_pin(store, version.model, version.number)
    assert find_pin(store, version) is None


def test_who_loses_against_another_pin_is_told() -> None:
    class Contested(MemoryStorage):
        def write_note(self, *_: object, **__: object) -> bool:
            return False

    with pytest.raises(ConflictError):
        pin(Contested(), make_version())
