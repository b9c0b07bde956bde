"""Planted faults in engines of this GPU, and healthy ones: what the gates make of them. A registry for each case."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_corpus.campaign import Job, Where, run_jobs
from fault_corpus.cases import Fault, plant
from fault_corpus.catalogue import FAULTS, HEALTHY_PRECISIONS
from modelreg.registry.words import Precision
from modelreg_testing.gpu_lab import Lab, require_time

pytestmark = pytest.mark.gpu

NEEDED_S = 150.0
AT_ONCE = 8
"""Builds beside each other: nothing is timed here, and a LeNet takes little of the card."""
REHEARSED = 4


def is_of_the_source(fault: Fault) -> bool:
    """TensorRT 8.6 makes FP16 of the source: what a converter did to a variant of FP16 is not in such an engine."""
    case = plant(fault)
    return fault.precision is Precision.INT8 or (case.change_variant is None and case.change_settings is None)


def test_planted_faults_are_caught_and_healthy_engines_pass(lab: Lab, tmp_path: Path) -> None:
    require_time(NEEDED_S)
    where = Where()
    if not lab.setting.is_rehearsal:
        where = Where(lab.setting.toolchain, (*lab.setting.where_words, "--builderOptimizationLevel", "0"))
    faults = [fault for fault in FAULTS if fault.network == "lenet" and is_of_the_source(fault)]
    healthy = [(f"lenet-{precision}", ("lenet", precision, 0)) for precision in HEALTHY_PRECISIONS]
    if lab.setting.is_rehearsal:
        faults = faults[:: len(faults) // REHEARSED]
    jobs = [
        *(Job(fault.name, where=where, with_layers=False) for fault in faults),
        *(Job(name, healthy=which, where=where, with_layers=False) for name, which in healthy),
    ]
    processes = 2 if lab.setting.is_rehearsal else AT_ONCE
    found = dict(zip((job.name for job in jobs), run_jobs(jobs, tmp_path, processes=processes), strict=True))
    for name, outcome in found.items():
        entry = {"name": name, "stage": outcome.stage, "by": outcome.by, "said": outcome.said, "s": outcome.seconds}
        lab.recorder.add("facts", {"what": "planted fault" if name not in dict(healthy) else "healthy engine", **entry})
    assert [fault.name for fault in faults if found[fault.name].passed] == []
    assert [(name, found[name].said) for name, _ in healthy if not found[name].passed] == []
