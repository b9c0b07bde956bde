"""Open what answers a release's requests: one engine, or a group of instances, with a batcher before it if wanted.

Whatever it is, a swap takes it as one engine: the whole group is of one release.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial

from modelreg.registry.errors import UsageError
from modelreg.runtime.batcher import Batcher
from modelreg.runtime.batches import require_batchable
from modelreg.runtime.devices import CPU, Device, choose_devices, find_devices
from modelreg.runtime.engines import Engine, open_engine
from modelreg.runtime.instance_group import InstanceGroup
from modelreg.runtime.trying import Label, ServingOptions, try_apart, try_engine, warm_up

OnChange = Callable[[], None]


def prepare_engine(new: Label, options: ServingOptions, *, old: Engine | None, on_change: OnChange) -> Engine:
    """
    Return what answers a new release, loaded, warm and tried.

    Args:
        new: The engine.
        options: How it is tried and served.
        old: What answers now, to ask it what the new one does not answer.
        on_change: Called when an instance fails or is back.

    Raises:
        ModelregError: It cannot be loaded, or does not answer as it should; nothing of it is left.
    """
    try_apart(new, options, old=old)
    engine = _open(new, options, needed=devices_in_use(old), on_change=on_change)
    try:
        for member in engine.members if isinstance(engine, InstanceGroup) else (engine,):
            try_engine(member.run, new, options, profiles=member.profiles, old=old)
        return _batched(engine, new, options)
    except BaseException:
        engine.close()
        raise


def open_again(label: Label, options: ServingOptions, *, on_change: OnChange) -> Engine:
    """
    Return what answers a release that was served before, loaded again as it was.

    Raises:
        ModelregError: It cannot be loaded.
    """
    engine = _open(label, options, needed=None, on_change=on_change)
    try:
        return _batched(engine, label, options)
    except BaseException:
        engine.close()
        raise


def devices_in_use(old: Engine | None) -> Collection[str] | None:
    """Return the devices that a new release must come up on: those that the old one answers on now."""
    used = {each.device for each in old.instances if each.out_since is None and not each.reason} if old else set()
    return used or None


def _open(label: Label, options: ServingOptions, *, needed: Collection[str] | None, on_change: OnChange) -> Engine:
    load = partial(
        open_engine,
        label.found,
        label.folder,
        label.signature,
        threads=options.threads,
        isolate=options.isolate,
        cuda_graphs=options.cuda_graphs,
    )
    if not options.has_group:
        return load()
    devices, unused = find_places(label, options)

    def warm(engine: Engine) -> None:
        warm_up(engine.run, label, options, profiles=engine.profiles, old=None)

    return InstanceGroup(
        [device for device in devices for _ in range(options.instances_per_device)],
        lambda device: load(device=device),
        warm=warm,
        unused=unused,
        needed=needed,
        retry_s=options.device_retry_s,
        on_change=on_change,
    )


def find_places(label: Label, options: ServingOptions) -> tuple[Sequence[Device], Sequence[tuple[Device, str]]]:
    """Return the devices to serve on, and those that the engine does not suit."""
    runs_on = label.found.runs_on
    if runs_on == "cpu":
        if options.devices not in (None, "all"):
            raise UsageError(f"the engine runs on the CPU, and the devices {options.devices!r} are asked for")
        return (CPU,), ()
    if options.devices is None:
        return (Device(name=runs_on, target=runs_on),), ()
    return choose_devices(find_devices(label.found.python or sys.executable), options.devices, label.found.engine)


def _batched(engine: Engine, label: Label, options: ServingOptions) -> Engine:
    """Return the engine with a queue before it, where that is wanted and possible."""
    if options.batching is None:
        return engine
    require_batchable(label.signature, engine.profiles, options.batching)
    if isinstance(engine, InstanceGroup):
        return Batcher(engine, options.batching, run_batch=engine.run_once, dispatchers=engine.size)
    return Batcher(engine, options.batching, run_batch=engine.run, dispatchers=1)
