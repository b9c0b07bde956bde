"""CUDA graphs of a plan, one for each shape that repeats, and the shared memory that is pinned. Python 3.8.

A graph is replayed only while the context keeps the shape that it was captured at. NVIDIA advises a context for each
graph, since the first run at a shape writes what the shape decides into the context's memory; and contexts cannot share
a profile before TensorRT 10. So after each change of shape one run is enqueued as ever, which writes it anew, and those
after it are replayed (docs/decisions/0052-how-a-call-on-the-gpu-is-spent.md).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Callable, Dict, Hashable, Optional

from modelreg.registry.toolchains import shared
from modelreg.registry.toolchains.cuda_memory import CudaError, Device

_KEPT = 8


class Graphs:
    """Replays what a context does, where it does the same again."""

    def __init__(self, device: Device, enqueue: Callable[[], None]) -> None:
        self._device, self._enqueue = device, enqueue
        self._known: OrderedDict[Hashable, Optional[Any]] = OrderedDict()
        self._last: Optional[Hashable] = None
        self.replayed = 0

    def run(self, key: Hashable) -> None:
        """
        Run what is bound; `key` has everything that a graph depends on: profile, shapes, addresses.

        Raises whatever `enqueue` raises.
        """
        if key != self._last:
            self._last = None  # if the run fails, nothing is known of the context
            self._enqueue()
            self._last = key
            return
        graph = self._find(key)
        if graph is None:
            self._enqueue()
        else:
            self._device.launch(graph)
            self.replayed += 1

    def forget_shape(self) -> None:
        """Hear that somebody else changed what the context has."""
        self._last = None

    def close(self) -> None:
        """Give all graphs back."""
        while self._known:
            self._drop(self._known.popitem()[1])

    def _find(self, key: Hashable) -> Optional[Any]:
        """Return the graph of a shape, captured now if it is new; None where it cannot be captured."""
        if key not in self._known:
            self._known[key] = self._capture()
            if len(self._known) > _KEPT:
                self._device.wait()  # it may be what runs
                self._drop(self._known.popitem(last=False)[1])
        self._known.move_to_end(key)
        return self._known[key]

    def _capture(self) -> Optional[Any]:
        self._device.begin_capture()
        failed = None
        try:
            self._enqueue()
        except Exception as error:  # of the backend, which cannot be captured here: plain runs go on
            failed = error
        try:
            graph = self._device.end_capture()
        except CudaError as error:
            failed, graph = failed or error, None
        if failed is None:
            return graph
        self._drop(graph)
        self._device.clear_error()
        sys.stderr.write("no CUDA graph at this shape: %s\n" % failed)
        return None

    def _drop(self, graph: Optional[Any]) -> None:
        if graph is not None:
            self._device.drop_graph(graph)


class PinnedArenas:
    """Keeps the memory that is shared with the parent pinned, so that copies to and from it need no other copy."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: Dict[int, Any] = {}
        self._refused = False

    def update(self) -> None:
        """Pin what is mapped now, and let go of what was before; where that is refused, copies are slower and right."""
        if shared.current is None or self._refused:
            return
        for number, arena in enumerate(shared.current):
            mapped, pinned = arena.mapping, self._pinned.get(number)
            if mapped is pinned:
                continue
            self._unpin(number)
            if mapped is None:
                continue
            try:
                self._device.pin(mapped.ctypes.data, mapped.nbytes)
            except CudaError as error:
                self._refused = True
                sys.stderr.write("shared memory is not pinned: %s\n" % error)
                return
            self._pinned[number] = mapped

    def close(self) -> None:
        """Let go of all."""
        for number in list(self._pinned):
            self._unpin(number)

    def _unpin(self, number: int) -> None:
        mapped = self._pinned.pop(number, None)
        if mapped is not None:
            self._device.wait()
            self._device.unpin(mapped.ctypes.data)
