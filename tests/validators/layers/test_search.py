from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from modelreg.validators.layers.search import Nodes, OutOfBudgetError, find_smallest

RANKING = [f"n{index}" for index in range(40)]


class Oracle:
    """Passes when every needed node is kept; counts how often it is asked anew."""

    def __init__(self, needed: set[str], *, budget: int | None = None) -> None:
        self.needed, self.budget = needed, budget
        self.asked: dict[Nodes, bool] = {}

    def __call__(self, nodes: Nodes) -> bool:
        if nodes not in self.asked:
            if self.budget is not None and len(self.asked) >= self.budget:
                raise OutOfBudgetError
            self.asked[nodes] = self.needed <= nodes
        return self.asked[nodes]


@pytest.mark.parametrize("seed", range(25))
def test_what_is_found_is_minimal_whatever_is_needed(seed: int) -> None:
    rng = random.Random(seed)
    oracle = Oracle(set(rng.sample(RANKING, rng.randint(1, 6))))
    found = find_smallest(RANKING, oracle)
    assert found.nodes == frozenset(oracle.needed)
    assert found.is_minimal
    assert not found.is_exhausted
    for node in found.nodes:
        assert oracle.asked.get(found.nodes - {node}) is not True


def test_one_node_at_the_top_takes_one_trial() -> None:
    oracle = Oracle({"n0"})
    assert find_smallest(RANKING, oracle).nodes == frozenset({"n0"})
    assert len(oracle.asked) == 1


def test_two_nodes_among_the_first_take_few_trials() -> None:
    oracle = Oracle({"n0", "n3"})
    assert find_smallest(RANKING, oracle).nodes == frozenset({"n0", "n3"})
    assert len(oracle.asked) <= 9


def test_no_set_helps() -> None:
    found = find_smallest(RANKING, Oracle({"elsewhere"}))
    assert found.nodes is None
    assert not found.is_exhausted
    assert find_smallest(["only"], Oracle({"elsewhere"})).nodes is None


def test_a_spent_budget_gives_the_best_so_far_and_says_so() -> None:
    oracle = Oracle({"n0", "n9"}, budget=6)
    found = find_smallest(RANKING, oracle)
    assert found.is_exhausted
    assert not found.is_minimal
    assert found.nodes is not None
    assert oracle.needed <= found.nodes
    nothing = find_smallest(RANKING, Oracle({"n30"}, budget=2))
    assert (nothing.nodes, nothing.is_exhausted) == (None, True)


def test_a_set_that_only_passes_together_or_alone_still_ends() -> None:
    passes: Callable[[Nodes], bool] = lambda nodes: len(nodes) % 3 == 1  # noqa: E731 - no oracle need be monotone
    found = find_smallest(RANKING[:8], passes)
    assert found.nodes is not None
    assert passes(found.nodes)
