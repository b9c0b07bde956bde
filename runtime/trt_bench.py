"""Timing plans of TensorRT as trtexec does: enqueue, H2D, GPU compute and D2H of every query, on several streams.

A part of the job file `trt.py`, under its rules: Python 3.8, NumPy and cuda-bindings alone. Events are on the GPU, so
that our loop, which is Python, is in none of the figures but `enqueue` and the wall time.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np

from modelreg.registry.toolchains.cuda_memory import Device
from modelreg.registry.toolchains.trt_session import PlanRunError, Session, numpy_type

Json = Dict[str, Any]
Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]
Buffers = List[Tuple[int, Any]]
"""An address on the device, and the page-locked array that belongs to it."""

_EVENTS_IN_FLIGHT = 64
_DEPTH = 2  # trtexec enqueues one query ahead of the one that it waits for
_TOLD_EVERY = 256


def time_runs(session: Session, request: Json, arrays: Arrays, report: Report) -> Tuple[Json, Arrays]:
    """
    Time a plan on inputs that are uploaded once; answer with the GPU's milliseconds of every run, as `gpu-compute`.

    GPU compute is the time between two events around each run, and runs are enqueued without waiting. Keys:
    `warmup_ms`, `duration_s` and `iterations` (the longer of both counts), `cuda_graph`.
    """
    session.bind(arrays)
    session.enqueue()  # TensorRT prepares in the first run, which a graph must not record
    session.device.wait()
    launch = make_launch(session, request["cuda_graph"])
    _warm_up(session, launch, request["warmup_ms"])
    samples: List[float] = []
    began = time.monotonic()
    while len(samples) < request["iterations"] or time.monotonic() - began < request["duration_s"]:
        samples += _time_some(session, launch)
        report(None, "%d runs" % len(samples))
    wall_s = time.monotonic() - began
    return {"runs": len(samples), "wall_s": wall_s}, {"gpu-compute": np.array(samples)}


def make_launch(session: Session, cuda_graph: bool) -> Callable[[], None]:
    """Return what enqueues one run of what is bound: the call, or a graph that recorded it."""
    if not cuda_graph:
        return session.enqueue
    session.device.begin_capture()
    session.enqueue()
    graph = session.device.end_capture()
    return lambda: session.device.launch(graph)


def _warm_up(session: Session, launch: Callable[[], None], warmup_ms: float) -> None:
    began = time.monotonic()
    while (time.monotonic() - began) * 1000 < warmup_ms:
        launch()
        session.device.wait()


def _time_some(session: Session, launch: Callable[[], None]) -> List[float]:
    """Return the milliseconds of some runs that were enqueued one after the other."""
    device = session.device
    pairs = [(device.make_event(), device.make_event()) for _ in range(_EVENTS_IN_FLIGHT)]
    for first, last in pairs:
        device.record(first)
        launch()
        device.record(last)
    device.wait()
    found = [device.elapsed_ms(first, last) for first, last in pairs]
    for pair in pairs:
        for event in pair:
            device.drop_event(event)
    return found


class Copies(Device):
    """A stream for copies in one direction, beside the one that computes, and page-locked memory for them."""

    def __init__(self) -> None:
        super().__init__()
        self._pinned: List[int] = []

    def follow(self, event: Any) -> None:
        """Let this stream go on only after an event of another one."""
        self.hold(self, event)

    def hold(self, device: Device, event: Any) -> None:
        """Let a device's stream go on only after an event of another one."""
        self._call("cudaStreamWaitEvent", device.stream, event, 0)

    def wait_until(self, event: Any) -> None:
        """Wait until an event has passed."""
        self._call("cudaEventSynchronize", event)

    def pin(self, size_bytes: int) -> Any:
        """Return page-locked memory as bytes: from any other the driver copies twice, and waits."""
        if not size_bytes:
            return np.empty(0, np.uint8)
        address = int(self._call("cudaMallocHost", size_bytes))
        self._pinned.append(address)
        return np.ctypeslib.as_array((ctypes.c_ubyte * size_bytes).from_address(address))

    def close(self) -> None:
        """Free the memory and the stream."""
        self.wait()
        for address in self._pinned:
            self._call("cudaFreeHost", address)
        self._pinned.clear()
        super().close()


class Lane:
    """One of trtexec's streams: a plan with its context, and with transfers a stream for each direction."""

    def __init__(self, session: Session, arrays: Arrays, *, cuda_graph: bool, transfers: bool) -> None:
        """
        Bind the inputs and run once.

        Raises:
            PlanRunError: TensorRT refuses, or an output's size is known only after the run, and it is to be copied.
        """
        self._session = session
        session.bind(arrays)
        session.enqueue()
        session.device.wait()
        self._launch = make_launch(session, cuda_graph)
        places_in, places_out = ([self._locate(name) for name in names] for names in (session.inputs, session.outputs))
        if transfers and any(size_bytes < 0 for _, size_bytes in places_out):
            raise PlanRunError("the size of an output is known only after a run: use --noDataTransfers")
        self._up, self._down = Copies(), Copies()
        self._transfers = transfers
        self._inputs: Buffers = _pin(places_in, self._up) if transfers else []
        self._outputs: Buffers = _pin(places_out, self._down) if transfers else []
        for address, array in self._inputs:
            session.device.download(array, address)  # what was bound, in the plan's own types
        session.device.wait()
        self._free = [[self._up.make_event() for _ in range(6)] for _ in range(_DEPTH)]
        self._flying: Deque[Tuple[List[Any], float]] = deque()
        self.found: List[Tuple[float, float, float, float]] = []

    def _locate(self, name: str) -> Tuple[int, int]:
        """Return the device's address of a tensor that is bound, and its bytes; negative while nobody knows them."""
        shape = [int(length) for length in self._session.context.get_tensor_shape(name)]
        if any(length < 0 for length in shape):
            return 0, -1
        dtype = numpy_type(self._session.engine.get_tensor_dtype(name))
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return int(self._session.context.get_tensor_address(name)), size_bytes

    def query(self) -> None:
        """Enqueue one query: copies in, the run, copies out, each after the one before."""
        compute = self._session.device
        events = self._free.pop()
        in_first, in_last, first, last, out_first, out_last = events
        if self._transfers:
            self._up.record(in_first)
            for address, array in self._inputs:
                self._up.upload(address, array)
            self._up.record(in_last)
            self._up.hold(compute, in_last)
        compute.record(first)
        began = time.perf_counter()
        self._launch()
        enqueue_ms = (time.perf_counter() - began) * 1000
        compute.record(last)
        if self._transfers:
            self._down.follow(last)
            self._down.record(out_first)
            for address, array in self._outputs:
                self._down.download(array, address)
            self._down.record(out_last)
        self._flying.append((events, enqueue_ms))

    def settle(self, *, leave: int) -> None:
        """Wait for queries until at most so many are on their way, and note their times."""
        while len(self._flying) > leave:
            events, enqueue_ms = self._flying.popleft()
            in_first, in_last, first, last, out_first, out_last = events
            self._up.wait_until(out_last if self._transfers else last)
            copies = (0.0, 0.0)
            if self._transfers:
                copies = (self._up.elapsed_ms(in_first, in_last), self._down.elapsed_ms(out_first, out_last))
            self.found.append((enqueue_ms, copies[0], self._up.elapsed_ms(first, last), copies[1]))
            self._free.append(events)

    def close(self) -> None:
        """Give the events, the streams and the page-locked memory back."""
        self.settle(leave=0)
        for events in self._free:
            for event in events:
                self._up.drop_event(event)
        self._up.close()
        self._down.close()


def _pin(places: Sequence[Tuple[int, int]], copies: Copies) -> Buffers:
    """Return the device's address of each tensor, with as much page-locked memory."""
    return [(address, copies.pin(size_bytes)) for address, size_bytes in places]


def measure(sessions: Sequence[Session], request: Json, arrays: Arrays, report: Report) -> Tuple[Json, Arrays]:
    """
    Time a plan on several streams; answer with milliseconds of every query by boundary.

    Boundaries are trtexec's: `enqueue` is the host's time in the call, `h2d`, `gpu-compute` and `d2h` are between
    events around the copies and the run, `latency` is the sum of the three. Without transfers there are only `enqueue`
    and `gpu-compute`. The body has `wall_s`, from the first query that counts to the end of the last.

    Args:
        sessions: One for each stream: TensorRT 8.6 lets two contexts of an engine share a profile only where the plan
            was built for that, so each has an engine of its own.
        request: `warmup_ms`, `duration_s` and `iterations` (the longer of both counts), `cuda_graph`, `transfers`.
        arrays: Inputs by name.
        report: Told how many queries there were.
    """
    lanes: List[Lane] = []
    try:
        for session in sessions:
            lanes.append(Lane(session, arrays, cuda_graph=request["cuda_graph"], transfers=request["transfers"]))
        began = time.monotonic()
        while (time.monotonic() - began) * 1000 < request["warmup_ms"]:
            _query_all(lanes, leave=0)
        for lane in lanes:
            lane.found.clear()
        queries, began = 0, time.monotonic()
        while queries < request["iterations"] or time.monotonic() - began < request["duration_s"]:
            _query_all(lanes, leave=_DEPTH - 1)
            queries += len(lanes)
            if queries // len(lanes) % _TOLD_EVERY == 0:
                report(None, "%d queries" % queries)
        for lane in lanes:
            lane.settle(leave=0)
        wall_s = time.monotonic() - began
        found = np.array([each for lane in lanes for each in lane.found])
    finally:
        for lane in lanes:
            lane.close()
    told = {"streams": len(lanes), "cuda_graph": request["cuda_graph"], "transfers": request["transfers"]}
    return {"wall_s": wall_s, "depth": _DEPTH, **told}, name_columns(found, transfers=request["transfers"])


def _query_all(lanes: Sequence[Lane], *, leave: int) -> None:
    for lane in lanes:
        lane.query()
    for lane in lanes:
        lane.settle(leave=leave)


def name_columns(found: Any, *, transfers: bool) -> Arrays:
    """Return the boundaries by name, of rows of enqueue, H2D, compute and D2H; the one that tables show first."""
    enqueue, upload, compute, download = found.T
    named = {"gpu-compute": compute, "enqueue": enqueue}
    if transfers:
        named.update(h2d=upload, d2h=download, latency=upload + compute + download)
    return {name: np.ascontiguousarray(column) for name, column in named.items()}
