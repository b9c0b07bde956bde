from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.builders.elsewhere.cluster import Cluster
from modelreg.builders.interface import ToolchainSpec
from modelreg.registry.toolchains.probing import probe_python
from modelreg.registry.words import Backend
from modelreg_testing.dask_cluster import ClusterProcesses, HeldPython, dask_cluster
from modelreg_testing.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    opened = Workshop.open(tmp_path)
    yield opened
    opened.database.close()


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> HeldPython:
    return HeldPython.write(tmp_path_factory.mktemp("held") / "held")


@pytest.fixture(scope="session")
def held_toolchain(held: HeldPython) -> ToolchainSpec:
    """Give the interpreter as it is registered; it lies elsewhere on the workers, as far as they know."""
    probe = probe_python(str(held.path), backend=Backend.ONNXRUNTIME)
    return ToolchainSpec(
        name="held", backend=probe.backend, version=probe.version, python="/opt/held/bin/python", details=probe.details
    )


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory, held: HeldPython) -> Iterator[ClusterProcesses]:
    """Run a scheduler and the worker `one`, which has ONNX Runtime and `held`."""
    with dask_cluster(tmp_path_factory.mktemp("dask")) as running:
        env = {"MODELREG_TOOLCHAINS": f"held={held.path}"}
        running.start("one", "onnxruntime=1,held=1", env=env, cwd=running.folder)
        running.wait_for("one")
        yield running


@pytest.fixture
def cluster(processes: ClusterProcesses) -> Iterator[Cluster]:
    with Cluster.connect(processes.address) as connected:
        yield connected
