"""How long an engine takes tonight, measured where it runs: without the way to its process."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from modelreg.cli.evaluation import fetch_files, make_passes
from modelreg.registry.scratch import scratch_folder

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, VersionRecord

ROUNDS = 24
FEWEST_ROUNDS = 8
BUDGET_S = 4.0
"""After so many seconds no further round is begun, once there are `FEWEST_ROUNDS`."""


def time_engine(
    registry: Registry, version: VersionRecord, golden: GoldenSetRecord, engine: EngineRecord
) -> float | None:
    """
    Return the median milliseconds of a run on the golden set's first batch, or None for what cannot be timed.

    Raises:
        ModelregError: It cannot be run here.
    """
    from modelreg.registry.tensor_sets import open_tensor_set
    from modelreg.validators.golden import check_golden
    from modelreg.validators.pairing import Timed

    with scratch_folder("nightly") as folder:
        place = Path(folder)
        path = place / "golden.safetensors"
        registry.storage.fetch_blob(golden.digest, path)
        plan = fetch_files(engine.files, registry.storage, place / "plan")
        own = make_passes(engine, plan, version, registry, place)[0]
        with open_tensor_set(path) as tensors:
            checked = check_golden(tensors, version.source.signature, profiles=engine.profiles)
            batch = next(iter(checked.feed.iterate_batches(tensors)))
            with own.open_runner() as runner:
                if not isinstance(runner, Timed):
                    return None
                runner.time_block(batch.inputs)  # warm
                times: list[float] = []
                began = time.monotonic()
                while len(times) < ROUNDS and (len(times) < FEWEST_ROUNDS or time.monotonic() - began < BUDGET_S):
                    times.append(runner.time_block(batch.inputs))
    return median(times)
