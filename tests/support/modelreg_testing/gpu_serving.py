"""The serving stages of the GPU run: releases to serve, requests, and lines for the record."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.config.settings import Home
from modelreg.registry.clock import utc_now
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.open import open_storage
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.host import describe_serving_host
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Json, Lab

LENET = ROOT / "examples" / "lenet"
REFERENCES = ROOT / "tests" / "gpu" / "references.py"


def set_up(lab: Lab) -> None:
    """Make the registry and register LeNet's two versions, with what PyTorch answers here."""
    lab.modelreg("init")
    with (lab.home / "config.toml").open("a") as config:
        config.write(f"\n{lab.setting.home_settings}")
    if not lab.setting.is_rehearsal:
        added = lab.modelreg("toolchain", "add", "trt", "--python", lab.setting.toolchain, "--json").document
        lab.recorder.body["environment"]["toolchain"] = added["toolchain"]
    for number in (1, 2):
        register(lab, "lenet", LENET / f"lenet-v{number}", LENET / f"golden-v{number}.npz")
        build(lab, f"lenet:{number}")


def set_up_resnet(lab: Lab) -> None:
    """Make ResNet-18, build it for batches of up to 32, and make it active."""
    folder = lab.make_resnet("resnet18")
    register(lab, "resnet18", folder / "resnet18", folder / "golden.safetensors")
    image = f"3x{lab.setting.image_size}x{lab.setting.image_size}"
    points = zip(("--minShapes", "--optShapes", "--maxShapes"), (1, 32, 32), strict=True)
    build(lab, "resnet18:1", *(word for flag, rows in points for word in (flag, f"image:{rows}x{image}")))
    lab.modelreg("promote", "resnet18:1", "--to", "production")


def register(lab: Lab, network: str, files: Path, inputs: Path) -> None:
    """Register a version."""
    weights = files.with_suffix(".safetensors")
    reference = ("--reference", f"{REFERENCES}:{network}", "--weights", weights, "--inputs", inputs)
    lab.modelreg("register", network, files.with_suffix(".onnx"), *reference, "--message", files.name)


def build(lab: Lab, reference: str, *words: object) -> None:
    """Build and validate it in FP16."""
    lab.modelreg("build", reference, "--precision", "fp16", *lab.setting.build_words, *words)
    lab.modelreg("validate", reference)


@contextmanager
def served(lab: Lab, network: str, **options: Any) -> Iterator[ActiveModel]:
    """Serve what is active."""
    pythons = () if lab.setting.is_rehearsal else (lab.setting.toolchain,)
    with ActiveModel(
        f"{network}@production",
        store=Home(lab.home).store_url,
        cache=lab.folder / "cache" / network,
        host=describe_serving_host(pythons),
        options=ServingOptions(**{"device_retry_s": 0.5, **options}),
        interval_s=0.2,
    ) as model:
        yield model


def images_like(lab: Lab, network: str, rows: int, *, number: int = 8) -> list[dict[str, NDArray[Any]]]:
    """Return random requests of some rows."""
    side = 28 if network == "lenet" else lab.setting.image_size
    random = np.random.default_rng(11)
    shape = (rows, 1 if network == "lenet" else 3, side, side)
    return [{"image": random.normal(size=shape).astype(np.float32)} for _ in range(number)]


def note(lab: Lab, what: str, **found: Any) -> Json:
    """Record a line about serving."""
    entry: Json = {"what": what, **found}
    lab.recorder.add("serving", entry)
    return entry


def move(lab: Lab, turn: int) -> None:
    """Roll back, or promote again, by the command."""
    if turn % 2:
        lab.modelreg("promote", "lenet:2", "--to", "production")
    else:
        lab.modelreg("rollback", "lenet", "--channel", "production")


class Flipper:
    """Makes one of two releases active after the other by the store's own swap, which takes next to no time."""

    def __init__(self, lab: Lab) -> None:
        self._storage: Storage = open_storage(Home(lab.home).store_url)

    def __call__(self) -> int:
        """Do it; return the new generation."""
        current = self._storage.read_pointer("lenet", "production")
        assert current is not None
        earlier = (self._storage.read_history("lenet", "production", each) for each in range(1, current.generation))
        other: Pointer = next(each for each in earlier if each.release != current.release)
        new = next_pointer(
            current,
            model="lenet",
            channel="production",
            release=other.release,
            version=other.version,
            kind=current.kind,
            rolls_back_to=current.generation,
            txn=os.urandom(8).hex(),
            actor="gpu-test",
            message="",
            at=utc_now(),
        )
        self._storage.swap_pointer(new, expected=current)
        return new.generation


def until(is_so: Callable[[], Any], *, timeout_s: float = 90.0) -> None:
    """Wait until something is so, and fail where it never is."""
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@contextmanager
def watching_utilisation() -> Iterator[list[float]]:
    """Collect the utilisation of the busiest GPU in per cent, about twice a second; nothing where nobody can tell."""
    found: list[float] = []
    over = threading.Event()
    tool = shutil.which("nvidia-smi")

    def watch() -> None:
        query = [str(tool), "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while tool is not None and not over.wait(0.4):
            answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
            numbers = [float(line) for line in answer.stdout.split() if line.replace(".", "").isdigit()]
            found.extend([max(numbers)] if numbers else [])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
