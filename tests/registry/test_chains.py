from modelreg.registry.chains import find_history_faults
from modelreg.registry.clock import utc_now
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.words import ActivationKind


def history(length: int) -> dict[int, Pointer]:
    documents: dict[int, Pointer] = {}
    for generation in range(1, length + 1):
        documents[generation] = next_pointer(
            documents.get(generation - 1),
            model="lenet",
            channel="production",
            release="a" * 64,
            version=1,
            kind=ActivationKind.PROMOTE,
            rolls_back_to=None,
            txn=f"t{generation}",
            actor="ada",
            message="",
            at=utc_now(),
        )
    return documents


def test_a_whole_history_has_no_faults() -> None:
    documents = history(3)
    assert find_history_faults(documents[3], documents) == []
    assert find_history_faults(None, {}) == []


def test_a_document_beyond_the_pointer_is_a_swap_cut_short() -> None:
    documents = history(3)
    assert find_history_faults(documents[2], documents) == []
    assert find_history_faults(None, {1: documents[1]}) == []


def test_every_missing_document_is_named() -> None:
    documents = history(4)
    pointer = documents[4]
    del documents[1], documents[3]
    assert [generation for generation, _ in find_history_faults(pointer, documents)] == [1, 3]


def test_a_document_of_another_chain_is_found() -> None:
    documents = history(3)
    documents[2] = documents[2]._replace(previous_txn="other")
    assert find_history_faults(documents[3], documents) == [(2, "it does not follow the generation before it")]


def test_a_pointer_that_is_not_its_history_is_found() -> None:
    documents = history(2)
    served = documents[2]._replace(version=9)
    assert find_history_faults(served, documents) == [(2, "its history document is not what the pointer says")]
