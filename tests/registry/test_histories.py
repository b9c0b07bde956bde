from __future__ import annotations

from modelreg.registry.histories import History, HistoryFault, find_faults, read_history, restore_documents
from modelreg.registry.storage.interface import RestoresHistory
from modelreg_testing.storage import MemoryStorage, chain_of, published


def test_a_store_that_takes_nothing_back_has_lost_it() -> None:
    store = MemoryStorage()
    assert not isinstance(store, RestoresHistory)
    pointer = chain_of(store, length=2, release=published(store))[-1]
    del store.channels["lenet", "production"].history[2]
    restore_documents(store, None, model="lenet", channel="production")
    history = read_history(store, model="lenet", channel="production")
    assert find_faults(history, pointer, storage=store, database=None) == [
        HistoryFault(message="generation 2: its history document is missing")
    ]


def test_a_channel_that_never_served_has_no_faults() -> None:
    assert find_faults(History(), None, storage=MemoryStorage(), database=None) == []
    assert History().newest == 0
