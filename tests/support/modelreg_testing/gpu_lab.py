"""The GPU run: where it works, what it records as it goes, and `modelreg` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from modelreg.config.settings import Home
from modelreg.registry.storage.open import open_storage
from modelreg_testing.checkout import ROOT

Json = dict[str, Any]

_TAIL = 3000  # characters of an output that an error shows


@dataclass(frozen=True, kw_only=True)
class Setting:
    """
    Where the run takes place.

    Attributes:
        results: Folder for what it finds.
        target: What engines are built for.
        device: Where PyTorch runs.
        toolchain: The interpreter that has the full TensorRT; empty for the rehearsal on the CPU.
        tactics: Where kernels may come from, for `--tacticSources`.
    """

    results: Path
    target: str
    device: str
    toolchain: str
    tactics: str

    @property
    def is_rehearsal(self) -> bool:
        """Return whether this is the CPU with ONNX Runtime, which finds faults of the script and measures nothing."""
        return not self.toolchain

    @property
    def where_words(self) -> list[str]:
        """Return what every `build` says about where and with what."""
        if self.is_rehearsal:
            return ["--target", self.target]
        return ["--target", self.target, "--toolchain", "trt", "--tacticSources", self.tactics]

    @property
    def build_words(self) -> list[str]:
        """Return the same with how hard it shall try: at level 3, ResNets take minutes."""
        return self.where_words + ([] if self.is_rehearsal else ["--builderOptimizationLevel", "2"])

    @property
    def home_settings(self) -> str:
        """Return what the registry's `config.toml` says: the target of the channel, and what loads plans here."""
        channel = f'[channels.production]\ntargets = ["{self.target}"]\n'
        return channel if self.is_rehearsal else f'[serve]\npython = ["{self.toolchain}"]\n\n{channel}'

    @property
    def image_size(self) -> int:
        """Return the side of the images that ResNets get."""
        return 96 if self.is_rehearsal else 224


def read_setting(environment: Mapping[str, str]) -> Setting:
    """Return what `run.sh` has set; a run that it did not start is refused."""
    results, target = environment.get("MODELREG_GPU_RESULTS"), environment.get("MODELREG_GPU_TARGET")
    if not results or not target:
        raise RuntimeError("these tests are started by tests/gpu/run.sh FOLDER")
    toolchain = environment.get("MODELREG_GPU_TOOLCHAIN", "")
    device = "cuda" if toolchain else "cpu"
    tactics = environment.get("MODELREG_GPU_TACTICS", "none")
    return Setting(results=Path(results), target=target, device=device, toolchain=toolchain, tactics=tactics)


def require_time(needed_s: float) -> None:
    """Skip what the script's limit would cut off: what comes first is what counts."""
    left_s = float(os.environ.get("MODELREG_GPU_UNTIL", "inf")) - time.time()
    if left_s < needed_s:
        pytest.skip(f"{left_s:.0f} s are left, and it may take {needed_s:.0f} s")


def require_gpu(lab: Lab) -> None:
    """Skip what a rehearsal on the CPU cannot promise."""
    if lab.setting.is_rehearsal:
        pytest.skip("the rehearsal on the CPU promises no speed")


class Recorder:
    """Everything that was found, in `results.json` as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.body: Json = {
            "schema": 1,
            "environment": {},
            "stages": [],
            "engines": [],
            "latency": [],
            "bench": [],
            "serving": [],
            "facts": [],
        }

    def add(self, section: str, entry: Json) -> None:
        """Append to a section."""
        self.body[section].append(entry)
        self.write()

    def write(self) -> None:
        """Write all of it; a reader sees the old file or the new one."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.body, indent=1, default=str) + "\n")
        partial.replace(self.path)

    def engine(self, network: str, precision: str) -> Json:
        """Return the entry of version 1's engine, so that more can be said about it."""
        for entry in self.body["engines"]:
            if (entry["network"], entry["version"], entry["precision"]) == (network, 1, precision):
                found: Json = entry
                return found
        raise AssertionError(f"{network}:1 {precision} was not built")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> Json:
        """Return the one JSON document on stdout."""
        body: Json = json.loads(self.out)
        return body


@dataclass
class Lab:
    """A registry and the commands that were run on it."""

    setting: Setting
    recorder: Recorder
    folder: Path
    plans: dict[str, Path] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Return the registry's folder."""
        return self.folder / ".modelreg"

    def modelreg(self, *words: object, expect: int | tuple[int, ...] = 0, timeout_s: float = 240.0) -> Finished:
        """
        Run `modelreg` in a process of its own.

        Raises:
            AssertionError: It ended with another exit code than `expect`.
        """
        finished = self._run([sys.executable, "-m", "modelreg.cli", *map(str, words)], timeout_s)
        said = " ".join(["modelreg", *map(str, words)])
        with (self.setting.results / "commands.log").open("a") as log:
            log.write(f"$ {said}\n{finished.out[-40_000:]}{finished.err[-20_000:]}")
            log.write(f"[exit {finished.code}, {finished.seconds:.1f} s]\n\n")
        printed = f"{finished.out[-_TAIL:]}\n{finished.err[-_TAIL:]}"
        expected = expect if isinstance(expect, tuple) else (expect,)
        assert finished.code in expected, f"`{said}` ended with {finished.code} instead of {expect}:\n{printed}"
        return finished

    def fetch_plan(self, engine: Json) -> Path:
        """Fetch a plan from the store, verified."""
        path = self.folder / f"engine-{engine['id']}.plan"
        open_storage(Home(self.home).store_url).fetch_blob(engine["plan"], path)
        return path

    def make_resnet(self, arch: str, *words: object) -> Path:
        """Have the example make a ResNet; return the folder with its files."""
        folder = self.folder / arch
        script = ROOT / "examples" / "resnet50" / "make.py"
        size = ["--image-size", str(self.setting.image_size)]
        command = [sys.executable, str(script), "--arch", arch, *size, "--into", str(folder), *map(str, words)]
        made = self._run(command, 200.0)
        assert made.code == 0, made.err[-_TAIL:]
        self.recorder.add("facts", {"what": f"files of {arch}", "told": made.out.strip(), "seconds": made.seconds})
        return folder

    def _run(self, command: list[str], timeout_s: float) -> Finished:
        environment = {**os.environ, "MODELREG_GPU_DEVICE": self.setting.device, "MODELREG_ACTOR": "gpu-test"}
        environment.pop("MODELREG_HOME", None)
        began = time.monotonic()
        try:
            ran = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"`{' '.join(command)}` took longer than {timeout_s:g} s") from error
        return Finished(code=ran.returncode, out=ran.stdout, err=ran.stderr, seconds=time.monotonic() - began)
