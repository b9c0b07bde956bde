from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from modelreg.runtime.container import read_limit, read_old_limit
from modelreg.runtime.monitoring.host_load import HostReader, share_busy, within_limit

GIB = 1 << 30


def test_this_host_is_read() -> None:
    reader = HostReader()
    first = reader.read()
    assert first.cpu_utilization is None  # between two looks
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    second = reader.read()
    assert second.problem == ""
    assert second.cpu_utilization is not None
    assert 0 < second.cpu_utilization <= 1
    assert second.memory_total_bytes is not None
    assert second.memory_total_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert second.memory_share is not None
    assert 0 < second.memory_share < 1
    assert second.process_cpu_s is not None
    assert second.process_cpu_s > 0
    assert second.process_memory_bytes is not None
    assert second.process_memory_bytes > 1 << 20


@pytest.mark.parametrize(
    ("before", "now", "share"),
    [
        (None, (1.0, 2.0), None),
        ((1.0, 2.0), (1.0, 2.0), None),
        ((1.0, 2.0), (2.0, 4.0), 0.5),
        ((1.0, 2.0), (0.5, 4.0), 0.0),  # clocks of processors may go back a little
        ((1.0, 2.0), (9.0, 4.0), 1.0),
    ],
)
def test_utilisation_is_between_two_looks(
    before: tuple[float, float] | None, now: tuple[float, float], share: float | None
) -> None:
    assert share_busy(before, now) == share


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_containers_limit_counts_with_caches_taken_off(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        memory__max=f"{4 * GIB}\n",
        memory__current=f"{3 * GIB}\n",
        memory__stat=f"anon 5\ninactive_file {GIB}\n",
    )
    assert read_limit(folder) == (4 * GIB, 2 * GIB)
    assert within_limit(64 * GIB, 30 * GIB, read_limit(folder)) == (4 * GIB, 2 * GIB)


def test_the_older_cgroups_limit_counts_and_its_huge_number_is_none(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        memory__limit_in_bytes=str(4 * GIB),
        memory__usage_in_bytes=str(GIB),
        memory__stat="cache 7\ntotal_inactive_file 24\n",
    )
    assert read_old_limit(folder) == (4 * GIB, GIB - 24)
    write(folder, memory__limit_in_bytes="9223372036854771712")
    assert within_limit(64 * GIB, 30 * GIB, read_old_limit(folder)) == (64 * GIB, 30 * GIB)


@pytest.mark.parametrize("text", ["max\n", "", "x"])
def test_without_a_limit_the_host_counts(tmp_path: Path, text: str) -> None:
    write(tmp_path, memory__max=text, memory__current="1", memory__stat="\n")
    assert read_limit(tmp_path) is None
    assert read_limit(tmp_path / "missing") is None
    assert within_limit(10, 5, None) == (10, 5)
