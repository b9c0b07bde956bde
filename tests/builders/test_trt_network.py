from __future__ import annotations

import pytest

from modelreg.builders.trt_network import read_nodes


@pytest.mark.parametrize(
    "names",
    [
        ["/c1/Conv"],
        ["/c1/Conv", "/Relu"],
        ["blk[0]/mm"],
        ["blk[0]/mm", "r]x", "[y]"],
        ["a\nb", "c"],
    ],
)
@pytest.mark.parametrize("between", ["\x1e", "", " "])
def test_names_are_read_whole_whatever_they_hold(names: list[str], between: str) -> None:
    assert read_nodes(between.join(f"[ONNX Layer: {name}]" for name in names)) == names


def test_what_is_no_metadata_of_onnx_names_no_node() -> None:
    assert read_nodes("") == []
    assert read_nodes("[Something: a]") == []
