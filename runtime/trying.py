"""Load a new engine and try it before it serves: in a child first if it could crash here, then at every shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from modelreg.registry.contents import Signature
from modelreg.registry.errors import ModelregError
from modelreg.registry.words import Backend
from modelreg.runtime.admission import Overlap
from modelreg.runtime.batches import Batching, find_lane, split
from modelreg.runtime.devices import Wanted
from modelreg.runtime.engines import Engine, open_trial
from modelreg.runtime.resolver import Preference
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import ServedEngine, SmokeTestError
from modelreg.runtime.suitability import Suitability
from modelreg.runtime.warming import Run, Shapes, SmokeTest, make_inputs, plan_shapes, require_sound

_log = logging.getLogger("modelreg.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """
    How engines are brought up.

    Attributes:
        overlap: Whether the new engine may be loaded beside the old one.
        threads: Threads of one operator in ONNX Runtime; None leaves it to the backend.
        shapes: Shapes to warm up, each with one for every input; empty: a guess from the model's signature, or from
            the plan's profiles.
        smoke_test: Tries a new engine with what is known.
        trial: Whether an engine that will run in this process is tried in a child first.
        isolate: Whether ONNX Runtime on the CPU runs in a child as TensorRT does: a crash in service costs the requests
            that are on it and a restart, each call some 100 us and copies of its arrays, and calls take turns.
        accept_new_inputs: Whether a release may take other inputs than the one before it.
        drain_timeout_s: How long an engine that makes way for another waits for its requests.
        preference: Decides between engines that fit this host equally well.
        devices: The GPUs to serve on: `all` that this process sees, or some of them by number or UUID; None: the first
            one that the engine suits.
        instances_per_device: Copies of the engine on each device; on the CPU, in all.
        batching: Gathers requests into batches; None: each request is run as it comes.
        cuda_graphs: Whether TensorRT replays a CUDA graph where a shape repeats.
        device_retry_s: When an instance that failed is opened again; each time twice as long, up to ten minutes.
    """

    overlap: Overlap = Overlap.AUTO
    threads: int | None = None
    shapes: Sequence[Shapes] = ()
    smoke_test: SmokeTest | None = None
    trial: bool = True
    isolate: bool = False
    accept_new_inputs: bool = False
    drain_timeout_s: float = 60.0
    preference: Preference = lambda _target: ()
    devices: Wanted = None
    instances_per_device: int = 1
    batching: Batching | None = None
    cuda_graphs: bool = False
    device_retry_s: float = 5.0

    def __post_init__(self) -> None:
        if self.instances_per_device < 1:
            raise ValueError("instances_per_device is at least 1")
        if isinstance(self.devices, str) and self.devices != "all":
            raise ValueError("devices is 'all', or a list of numbers and UUIDs, or None")

    @property
    def has_group(self) -> bool:
        """Return whether an engine is served as a group of instances."""
        return self.devices is not None or self.instances_per_device > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """All that is known of a served engine, enough to load it again."""

    served: ServedEngine
    found: Suitability
    folder: Path
    signature: Signature

    @property
    def files_bytes(self) -> int:
        """Return the bytes of its files."""
        return sum(file.size_bytes for file in self.found.engine.files)

    def is_same_engine(self, other: Label) -> bool:
        """Return whether both are the same bytes, loaded the same way."""
        one, two = self.found, other.found
        same_way = (one.engine.backend, one.runs_on, one.python) == (two.engine.backend, two.runs_on, two.python)
        return same_way and one.engine.files == two.engine.files


def try_apart(new: Label, options: ServingOptions, *, old: Engine | None) -> None:
    """Load and try an engine in a child first, where it will run in this process and could crash it."""
    if (
        options.trial
        and not options.isolate
        and new.found.engine.backend is Backend.ONNXRUNTIME
        and new.found.runs_on == "cpu"
    ):
        with open_trial(new.found.engine, new.folder, threads=options.threads) as runner:
            try_engine(runner.run, new, options, profiles=(), old=old)


def try_engine(run: Run, new: Label, options: ServingOptions, *, profiles: Sequence[Any], old: Engine | None) -> None:
    """
    Have an engine answer at every shape, and then the user's own test.

    Args:
        run: Runs it.
        new: What it is.
        options: How it is tried.
        profiles: The plan's.
        old: What answers now, to ask it what the new one does not answer.

    Raises:
        ModelregError: It does not answer as it should.
    """
    warm_up(run, new, options, profiles=profiles, old=old)
    if options.smoke_test is not None:
        options.smoke_test(run)


def warm_up(run: Run, new: Label, options: ServingOptions, *, profiles: Sequence[Any], old: Engine | None) -> None:
    """Have an engine answer at every shape; raises SmokeTestError where it does not as it should."""
    for shapes in plan_shapes(new.signature, profiles=profiles, given=options.shapes):
        inputs = make_inputs(new.signature, shapes)
        if inputs is None:
            continue
        try:
            outputs = run(inputs)
        except RunError as error:
            # What was guessed may be no input at all: an index beyond a table, a length that must be even.
            if profiles or options.shapes or _ask(old, inputs) is not None:
                raise SmokeTestError(f"the new engine does not run at {dict(shapes)}: {error}") from error
            _log.info("no warm-up at %s: %s", dict(shapes), error)
            continue
        require_sound(outputs, new.signature, ask_old=partial(_ask, old, inputs))
        if options.batching is not None:
            split(outputs, [find_lane(inputs)[1]])  # what has no row for each row cannot be taken apart


def _ask(old: Engine | None, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if old is None:
        return None
    try:
        return old.run(inputs)
    except ModelregError:
        return None


def require_same_inputs(before: Signature, new: Signature) -> None:
    """Refuse a release whose inputs are others: every request that comes would fail."""
    old, now = ({each.name: (each.dtype, each.shape) for each in signature.inputs} for signature in (before, new))
    if old.keys() != now.keys() or any(old[name][0] != now[name][0] for name in old):
        raise SmokeTestError(
            f"the new release takes the inputs {', '.join(now)}, and clients send {', '.join(old)}",
            hint="Serve it with accept_new_inputs, once the clients know.",
        )
    for name, (_, shape) in now.items():
        earlier = old[name][1]
        if shape is None or earlier is None:
            continue
        fits = len(shape) == len(earlier) and all(
            not isinstance(axis, int) or axis == was for axis, was in zip(shape, earlier, strict=True)
        )
        if not fits:
            raise SmokeTestError(
                f"the new release takes {name!r} as {list(shape)}, and clients send {list(earlier)}",
                hint="Serve it with accept_new_inputs, once the clients know.",
            )
