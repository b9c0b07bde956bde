"""Is a channel's history whole? Pure: pointer and documents in, faults out."""

from __future__ import annotations

from collections.abc import Mapping

from modelreg.registry.pointers import Pointer

HISTORY_HINT = "Restore it from a backup of the store; meanwhile `rollback --to-generation N` reaches what is there."
"""What to do about a fault in a history."""


def find_history_faults(pointer: Pointer | None, documents: Mapping[int, Pointer]) -> list[tuple[int, str]]:
    """
    Return (generation, what is wrong) for every fault, in order.

    A whole history has one document for each generation up to the pointer's, each naming the transaction before it,
    and the newest is the pointer itself. One document beyond the pointer is a swap that was cut short, no fault.

    Args:
        pointer: What the channel serves.
        documents: Generation -> history document, those that could be read.
    """
    served = pointer.generation if pointer else 0
    faults: list[tuple[int, str]] = []
    for generation in range(1, served + 1):
        document = documents.get(generation)
        if document is None:
            faults.append((generation, "its history document is missing"))
            continue
        before = documents.get(generation - 1)
        if before is not None and document.previous_txn != before.txn:
            faults.append((generation, "it does not follow the generation before it"))
        if generation == served and document != pointer:
            faults.append((generation, "its history document is not what the pointer says"))
    return faults
