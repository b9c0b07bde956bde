"""An engine that is built on the GPU of a Dask worker: this host sends the cell, and gets it back through the store."""

from __future__ import annotations

import pytest

from modelreg_testing.dask_cluster import dask_cluster
from modelreg_testing.gpu_lab import Lab, require_time

pytestmark = pytest.mark.gpu

NEEDED_S = 50.0


def test_lenet_is_built_by_a_worker_that_offers_the_gpu(lab: Lab) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed here")
    require_time(NEEDED_S)
    setting = lab.setting
    offered, env = "onnxruntime=1", {}
    if not setting.is_rehearsal:
        offered, env = f"trt=1,{setting.target}=1", {"MODELREG_TOOLCHAINS": f"trt={setting.toolchain}"}
    with dask_cluster(lab.folder / "dask") as cluster:
        cluster.start("gpu", offered, env=env)
        cluster.wait_for("gpu")
        built = lab.modelreg(
            *("build", "lenet:1", "--precision", "fp16", "--rebuild", "--json", "--executor", cluster.url),
            *setting.build_words,
        )
    (cell,) = built.document["cells"]
    engine = cell["engine"]
    assert engine["realised"]["built_by"]["worker"] == "gpu"
    if not setting.is_rehearsal:
        assert (engine["target"], engine["gpu"] != "") == (setting.target, True)
    lab.recorder.add("facts", {"what": "lenet fp16 built by a Dask worker", "build_s": engine["build_s"]})
    lab.modelreg("validate", "lenet:1", "--engine", engine["id"])
