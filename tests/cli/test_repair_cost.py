"""What a repair is said to have cost."""

from __future__ import annotations

import pytest

from modelreg.cli.repair_cost import Cost


@pytest.mark.parametrize(("after", "saves_nothing"), [(99, False), (100, True), (101, True)])
def test_a_repair_that_ends_as_large_as_fp32_saves_nothing(after: int, saves_nothing: bool) -> None:
    cost = Cost(size_bytes=(30, after), latency_ms=None, samples=1, fp32_size_bytes=100)
    assert cost.saves_nothing is saves_nothing
    assert cost.to_json() == {
        "size_bytes": [30, after],
        "fp32_size_bytes": 100,
        "latency_ms": None,
        "samples_per_run": 1,
    }
