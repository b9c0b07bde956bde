"""Arrays that are joined where they end up."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from modelreg.registry.toolchains.pieces import Pieces, whole
from modelreg.registry.toolchains.process import Worker
from modelreg.registry.toolchains.shared import make_arenas

PARTS = [np.arange(12.0).reshape(2, 6), np.arange(6.0).reshape(1, 6) - 3]


def test_pieces_have_the_shape_type_and_bytes_of_the_whole() -> None:
    pieces = Pieces(PARTS)
    assert (pieces.shape, pieces.dtype, pieces.nbytes) == ((3, 6), np.dtype("float64"), 3 * 6 * 8)
    np.testing.assert_array_equal(pieces.join(), np.concatenate(PARTS))
    assert whole(PARTS[0]) is PARTS[0]


def test_bytes_of_another_order_become_those_of_this_host() -> None:
    joined = Pieces([PARTS[0].astype(">f8"), PARTS[1].astype(">f8")]).join()
    assert joined.dtype.isnative
    np.testing.assert_array_equal(joined, np.concatenate(PARTS))


@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "pipe"])
@pytest.mark.parametrize("rows", [1, 2_000], ids=["small", "large"])
def test_a_worker_gets_them_as_one_array(tmp_path: Path, shares: bool, rows: int) -> None:
    module = tmp_path / "job.py"
    module.write_text("JOBS = {'echo': lambda request, arrays, report: ({'shape': list(arrays['x'].shape)}, arrays)}\n")
    arrays = [np.full((rows, 16), number, np.float32) for number in range(3)]
    arenas = make_arenas() if shares else None
    with Worker.start(sys.executable, module, log_path=tmp_path / "log", arenas=arenas) as worker:
        for _ in range(2):
            body, out = worker.call("echo", {}, {"x": Pieces(arrays), "y": arrays[0]}, timeout_s=60)
            assert body["shape"] == [3 * rows, 16]
            np.testing.assert_array_equal(out["x"], np.concatenate(arrays))
            np.testing.assert_array_equal(out["y"], arrays[0])


def test_what_goes_to_shared_memory_is_joined_nowhere_else(tmp_path: Path) -> None:
    module = tmp_path / "job.py"
    module.write_text("JOBS = {'take': lambda request, arrays, report: {}}\n")
    arrays = [np.ones((1, 1 << 18), np.float32) for _ in range(8)]  # 8 MiB
    with Worker.start(sys.executable, module, log_path=tmp_path / "log", arenas=make_arenas()) as worker:
        worker.call("take", {}, {"x": Pieces(arrays)}, timeout_s=60)
        tracemalloc.start()
        try:
            worker.call("take", {}, {"x": Pieces(arrays)}, timeout_s=60)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
