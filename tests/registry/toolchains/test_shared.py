"""Arrays in memory that a real child shares with this process."""

from __future__ import annotations

import errno
import io
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.toolchains.process import Worker, WorkerProtocolError
from modelreg.registry.toolchains.shared import Arena, Arenas, make_arenas
from modelreg.registry.toolchains.worker import FrameError, read_frame, write_frame
from modelreg_testing.serving import open_files

JOBS = textwrap.dedent(
    """
    import numpy as np
    from modelreg.registry.toolchains import shared


    def echo(request, arrays, report):
        return {}, dict(arrays)


    def lent(request, arrays, report):
        found = {}
        for name, array in arrays.items():
            found[name] = shared.empty(array.shape, array.dtype)
            found[name][...] = array
        return {"mapped": len(shared.current.answers.mapping)}, found


    def lies(request, arrays, report):
        shared.current.answers.place = lambda array: request["at"]
        return {}, {"x": np.zeros(1 << 20, np.uint8)}


    JOBS = {"echo": echo, "lent": lent, "lies": lies}
    """
)


def some_arrays(seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    big = random.normal(size=(32, 3, 64, 64)).astype(np.float32)
    return {
        "big": big,
        "half": big.astype(np.float16),
        "turned": big.transpose(3, 0, 1, 2),
        "every other": big[::2],
        "small": np.arange(5),
        "none": np.zeros((0, 7), np.float32),
        "scalar": np.array(3.5),
        "flags": random.normal(size=100_000) > 0,
    }


def check(found: dict[str, Any], sent: dict[str, Any]) -> None:
    assert found.keys() == sent.keys()
    for name, array in sent.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    module = tmp_path / "jobs.py"
    module.write_text(JOBS)
    before = open_files()
    with Worker.start(sys.executable, module, log_path=tmp_path / "log", arenas=make_arenas()) as started:
        yield started
    assert open_files() == before


@pytest.mark.parametrize("job", ["echo", "lent"])
def test_arrays_come_back_as_they_went_and_stay(worker: Worker, job: str) -> None:
    first = some_arrays(1)
    found = worker.call(job, {}, first, timeout_s=60)[1]
    second = worker.call(job, {}, some_arrays(2), timeout_s=60)[1]
    check(found, first)  # the second answer was not written over it
    check(second, some_arrays(2))
    found["big"][0] = 7  # it is the caller's own


def test_what_is_shared_grows_and_is_used_again(worker: Worker) -> None:
    mapped = []
    for size in (1 << 20, 12 << 20, 1 << 15, 12 << 20):
        sent = {"x": np.random.default_rng(size).integers(0, 255, size, np.uint8)}
        body, found = worker.call("lent", {}, sent, timeout_s=60)
        check(found, sent)
        mapped.append(body["mapped"])
    assert mapped[0] < mapped[1] == mapped[2] == mapped[3] < 20 << 20


@pytest.mark.parametrize("at", [4096 * 1000, 1, -1, "x"])
def test_a_child_that_names_a_place_that_is_none_has_printed_garbage(worker: Worker, at: Any) -> None:
    with pytest.raises(WorkerProtocolError, match="garbage"):
        worker.call("lies", {"at": at}, timeout_s=60)


def test_a_frame_of_shared_memory_is_nothing_without_it() -> None:
    line = b'{"arrays":[{"name":"x","dtype":"|u1","shape":[1],"nbytes":1,"at":0}]}\n'
    with pytest.raises(FrameError, match="there is no shared memory"):
        read_frame(io.BytesIO(line))


def test_without_memory_to_share_the_pipe_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    arena, stream = Arena.create(), io.BytesIO()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    sent = np.arange(1 << 16)
    arena.start()
    write_frame(stream, {}, {"x": sent}, arena=arena)
    stream.seek(0)
    received = read_frame(stream, arena=arena)
    assert received is not None
    check(received[1], {"x": sent})
    arena.close()
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert make_arenas() is None


def test_nobody_can_cut_a_shared_file_off() -> None:
    arenas = make_arenas()
    assert isinstance(arenas, Arenas)
    arenas.requests.start()
    arenas.requests.empty((1 << 20,), np.uint8)
    with pytest.raises(PermissionError):
        os.ftruncate(arenas.requests.fd, 0)
    arenas.close()
