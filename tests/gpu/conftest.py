"""One lab for the whole GPU run; every stage's outcome goes into its record as soon as it is known."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelreg_testing.gpu_lab import Json, Lab, Recorder, Setting, read_setting

_LAB = pytest.StashKey[Lab]()
_PACKAGES = ("modelreg", "torch", "onnx", "onnxruntime", "numpy")


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Give a folder for a registry, and the record of this run."""
    setting = read_setting(os.environ)
    setting.results.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(setting.results / "results.json")
    with tempfile.TemporaryDirectory(prefix="modelreg-gpu-") as folder:
        recorder.body["environment"] = describe(setting)
        recorder.write()
        made = Lab(setting=setting, recorder=recorder, folder=Path(folder))
        request.config.stash[_LAB] = made
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Record the outcome, the time and the reason of each stage."""
    report = yield
    lab = item.config.stash.get(_LAB, None)
    is_end = report.when == "call" or (report.when == "setup" and report.outcome != "passed")
    if lab is not None and is_end:
        reason = "" if call.excinfo is None else str(call.excinfo.value)
        stage = {"name": item.name, "outcome": report.outcome, "seconds": report.duration, "reason": reason[:4000]}
        lab.recorder.add("stages", stage)
    return report


def describe(setting: Setting) -> Json:
    """Return the date, the machine and the versions."""
    found: Json = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "rehearsal": setting.is_rehearsal,
        "target": setting.target,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    for name in _PACKAGES:
        found[name] = importlib.metadata.metadata(name)["Version"]
    if setting.is_rehearsal:
        return found
    import torch

    cudnn: Any = torch.backends.cudnn
    found |= {"cuda_of_torch": torch.version.cuda, "cudnn": cudnn.version()}
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        fields = "name,driver_version,compute_cap,clocks.sm,clocks.max.sm,power.limit"
        query = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        first = answer.stdout.splitlines()[:1]
        found |= dict(zip(fields.split(","), [part.strip() for part in "".join(first).split(",")], strict=False))
    return found
