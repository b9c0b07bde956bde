from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.runtime.admission import Overlap, choose_mode, estimate_need, read_free_memory
from modelreg.runtime.serving import SwapMode

MIB = 1 << 20


@pytest.mark.parametrize(
    ("policy", "need", "free", "mode"),
    [
        (Overlap.AUTO, 94, 100, SwapMode.OVERLAP),
        (Overlap.AUTO, 96, 100, SwapMode.DRAIN_FIRST),
        (Overlap.AUTO, 96, None, SwapMode.OVERLAP),
        (Overlap.ALWAYS, 200, 100, SwapMode.OVERLAP),
        (Overlap.NEVER, 1, 100, SwapMode.DRAIN_FIRST),
    ],
)
def test_both_are_there_at_once_where_they_fit_or_where_it_is_wanted(
    policy: Overlap, need: int, free: int | None, mode: SwapMode
) -> None:
    assert choose_mode(policy, need_bytes=need, free_bytes=free) is mode


def test_what_an_engine_needs_is_three_times_its_files_until_one_was_measured() -> None:
    assert estimate_need(100) == 300
    assert estimate_need(200, old_files_bytes=100, old_used_bytes=150) == 300
    assert estimate_need(10, old_files_bytes=100, old_used_bytes=150) == 150  # a context costs what it costs


def test_a_containers_limit_counts_and_pages_that_can_go_are_free(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    assert read_free_memory(meminfo=meminfo, cgroup=tmp_path) == MIB
    for name, text in {
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "anon 5\ninactive_file 50",
    }.items():
        (tmp_path / name).write_text(text)
    assert read_free_memory(meminfo=meminfo, cgroup=tmp_path) == 150
    (tmp_path / "memory.max").write_text("max")
    assert read_free_memory(meminfo=meminfo, cgroup=tmp_path) == MIB


def test_where_nobody_can_tell_it_is_none(tmp_path: Path) -> None:
    assert read_free_memory(meminfo=tmp_path / "none", cgroup=tmp_path) is None
