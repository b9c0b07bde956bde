from __future__ import annotations

import pytest

from modelreg.registry.target_order import in_order


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["sm_120", "sm_89", "cpu", "sm_89"], ("cpu", "sm_89", "sm_120")),
        (["sm_9", "sm_090", "sm_10", ""], ("", "sm_9", "sm_10", "sm_090")),
        ([], ()),
    ],
)
def test_targets_are_read_by_number(targets: list[str], expected: tuple[str, ...]) -> None:
    assert in_order(targets) == expected
