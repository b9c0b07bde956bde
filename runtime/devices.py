"""The devices that this process may use, and which of them a served engine gets.

`CUDA_VISIBLE_DEVICES` is what an operator gave this process. A child that is pinned to one device gets one word of
that list, or one number where there is no list, so that nothing is ever seen that was not given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from modelreg.registry.errors import NotFoundError, UsageError, WorkerError
from modelreg.registry.manifest import ReleasedEngine
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.toolchains import probe
from modelreg.registry.toolchains.process import Worker
from modelreg.registry.words import Json
from modelreg.runtime.suitability import runs_on_target

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ASK_TIMEOUT_S = 60.0

Wanted = str | Sequence[int | str] | None
"""`all`, or numbers and UUIDs (their beginnings do); None: the first device that the engine suits."""
Ask = Callable[[Mapping[str, str]], Sequence[Json]]
"""Returns what a child sees of the GPUs when it gets some variables."""


class Device(NamedTuple):
    """
    Where an instance runs.

    Attributes:
        name: `cpu`, or `GPU 0` by its number among those that this process sees.
        target: `cpu`, or `sm_90` and the like.
        uuid: The GPU's, or the MIG instance's.
        number: The one in the name.
        visible: The `CUDA_VISIBLE_DEVICES` of a child that shall see it alone; empty: whatever this process sees.
    """

    name: str
    target: str
    uuid: str = ""
    number: int = 0
    visible: str = ""


def read_wanted(words: Sequence[str]) -> Wanted:
    """
    Return the devices that are meant by words of a command line or a setting; none: the first one that the engine
    suits. Pure.

    Raises:
        UsageError: A word is neither `all`, alone, nor a number, nor a UUID.
    """
    if not words:
        return None
    if tuple(words) == ("all",):
        return "all"
    for word in words:
        if not ((word.isascii() and word.isdecimal()) or word.startswith(("GPU-", "MIG-"))):
            raise UsageError(f"{word!r:.60} is no device", hint="Write all, or numbers and UUIDs such as 0,1,GPU-5fe3.")
    return [int(word) if word.isdecimal() else word for word in words]


CPU = Device(name="cpu", target="cpu")


def parse_visible(text: str | None) -> tuple[str, ...] | None:
    """
    Return the words of `CUDA_VISIBLE_DEVICES` that CUDA heeds: those before the first that cannot be a device.

    None where the variable is not set: all are visible. Pure. Whether a word names a device, only the driver knows.
    """
    if text is None:
        return None
    found: list[str] = []
    for word in (each.strip() for each in text.split(",")):
        if not (word.isdecimal() or word.startswith(("GPU-", "MIG-"))):
            break
        found.append(word)
    return tuple(found)


def list_devices(visible: str | None, ask: Ask) -> tuple[Device, ...]:
    """
    Return the GPUs that this process sees.

    Args:
        visible: This process's `CUDA_VISIBLE_DEVICES`.
        ask: Asks a child.
    """
    words = parse_visible(visible)
    if words is None:
        return tuple(_describe(gpu, number, str(number)) for number, gpu in enumerate(ask({})))
    if not words:
        return ()
    if not any(word.startswith("MIG-") for word in words):
        pairs = zip(ask({}), words, strict=False)  # CUDA may know fewer than the list names
        return tuple(_describe(gpu, number, word) for number, (gpu, word) in enumerate(pairs))
    # Of several MIG instances a process sees the first alone, so a child is asked about each.
    found = [(gpu, word) for word in dict.fromkeys(words) for gpu in list(ask({VISIBLE: word}))[:1]]
    return tuple(_describe(gpu, number, word) for number, (gpu, word) in enumerate(found))


def _describe(gpu: Json, number: int, word: str) -> Device:
    uuid = str(gpu.get("uuid", ""))
    if word.startswith("MIG-"):
        uuid = "MIG-" + uuid.partition("-")[2] if uuid else word
    return Device(name=f"GPU {number}", target=gpu["target"], uuid=uuid, number=number, visible=word)


def ask_child(python: str) -> Ask:
    """Return what asks a child of an interpreter; it raises WorkerError where that does not answer."""

    def ask(variables: Mapping[str, str]) -> Sequence[Json]:
        with (
            scratch_folder("devices") as folder,
            Worker.start(python, Path(probe.__file__), log_path=folder / "log", env=variables) as worker,
        ):
            found: Sequence[Json] = worker.call("gpus", {}, timeout_s=_ASK_TIMEOUT_S)[0]["gpus"]
            return found

    return ask


def find_devices(python: str) -> tuple[Device, ...]:
    """
    Return the GPUs that this process sees, asked of the driver by a child of an interpreter.

    Raises:
        NotFoundError: It cannot be asked.
    """
    try:
        return list_devices(os.environ.get(VISIBLE), ask_child(python))
    except WorkerError as error:
        raise NotFoundError(f"the devices of this host cannot be listed: {error}") from error


def choose_devices(
    devices: Sequence[Device], wanted: Wanted, engine: ReleasedEngine
) -> tuple[tuple[Device, ...], tuple[tuple[Device, str], ...]]:
    """
    Return the devices that an engine shall run on, and those that are wanted and do not suit it, with the reason. Pure.

    Raises:
        UsageError: A device is named that this process does not see.
        NotFoundError: The engine suits none of those that are wanted.
    """
    asked = list(devices) if wanted is None or isinstance(wanted, str) else [_find(devices, each) for each in wanted]
    suited: list[Device] = []
    left: list[tuple[Device, str]] = []
    for device in dict.fromkeys(asked):
        if runs_on_target(engine, device.target):
            suited.append(device)
        else:
            left.append((device, f"the engine is for {engine.target}, and this is {device.target}"))
    if not suited:
        others = ", ".join(f"{device.name} ({device.target})" for device in asked)
        here = f"not for {others}" if others else "this host has no GPU"
        raise NotFoundError(f"the engine is for {engine.target}, and {here}")
    return tuple(suited), tuple(left)


def _find(devices: Sequence[Device], wanted: int | str) -> Device:
    for device in devices:
        is_it = device.number == wanted if isinstance(wanted, int) else device.uuid.startswith(wanted) and wanted
        if is_it:
            return device
    here = ", ".join(f"{device.number} ({device.uuid})" for device in devices) or "none"
    raise UsageError(f"this process sees no device {wanted!r}", hint=f"It sees {here}.")
