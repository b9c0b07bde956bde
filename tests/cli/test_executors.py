"""`build --executor`: LeNet over two workers of a real Dask cluster, and what the options refuse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.builders.elsewhere import cluster
from modelreg.cli.executors import read_executor
from modelreg.registry.errors import UsageError
from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import Shop
from modelreg_testing.dask_cluster import ClusterProcesses, dask_cluster
from modelreg_testing.toolchains import needs_rtx

LENET = ROOT / "examples" / "lenet"
ONNX, GOLDEN, CALIBRATION = LENET / "lenet-v1.onnx", LENET / "golden-v1.npz", LENET / "calibration.npz"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as running:
        running.start("a", "onnxruntime=1")
        running.start("b", "onnxruntime=1,rtx=1", env={"MODELREG_TOOLCHAINS": f"rtx={sys.prefix}"})
        running.wait_for("a", "b")
        yield running


@pytest.mark.slow
@needs_rtx
def test_lenet_is_built_by_two_workers_in_four_ways(processes: ClusterProcesses, shop: Shop) -> None:
    assert shop.cli("register", "lenet", ONNX, "--golden", GOLDEN).code == 0
    assert shop.cli("toolchain", "add", "rtx", "--python", sys.executable).code == 0
    cpu = shop.cli(
        *("build", "lenet:1", "--precision", "fp32,fp16,int8", "--calibration", CALIBRATION),
        *("--executor", processes.url, "-v"),
    )
    assert cpu.code == 0, cpu.err
    ahead = shop.cli("build", "lenet:1", "--target", "sm_89", "--executor", processes.url, "--json")
    assert ahead.code == 0, ahead.err
    engines = shop.cli("show", "lenet:1", "--json").document["engines"]
    built = {(engine["target"], engine["precision"]): engine["realised"]["built_by"]["worker"] for engine in engines}
    assert {*built} == {("cpu", "fp32"), ("cpu", "fp16"), ("cpu", "int8"), ("sm_89", "fp32")}
    assert {*built.values()} == {"a", "b"}
    assert built["sm_89", "fp32"] == "b"
    assert "building lenet:1 int8 for cpu: on worker " in cpu.err
    again = shop.cli("build", "lenet:1", "--executor", "dask://127.0.0.1:1")  # nobody is asked
    assert (again.code, "is reused" in again.err) == (0, True)
    assert shop.cli("doctor", "--deep").code == 0


def test_a_scheduler_that_is_away_is_one_line(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.Cluster.connect.__func__, "__kwdefaults__", {"timeout_s": 0.5})  # type: ignore[attr-defined]
    assert shop.cli("register", "lenet", ONNX).code == 0
    failed = shop.cli("build", "lenet:1", "--executor", "dask://127.0.0.1:1")
    assert failed.code == 1
    assert failed.err.startswith("modelreg: error: no Dask scheduler answers at tcp://127.0.0.1:1: ")
    assert len(failed.err.splitlines()) == 2
    assert shop.cli("show", "lenet:1", "--json").document["engines"] == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local", ""),
        ("dask://10.0.0.5:8786", "tcp://10.0.0.5:8786"),
        ("dask://scheduler.lan:8786/", "tcp://scheduler.lan:8786"),
        ("tls://[::1]:8786", "tls://[::1]:8786"),
    ],
)
def test_an_executor_is_this_host_or_a_scheduler(text: str, address: str) -> None:
    assert read_executor(text) == address


@pytest.mark.parametrize(
    "text", ["dask", "dask://", "dask://host", "ray://host:1", "dask://host:99999", "dask://h:1/x"]
)
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match="is no executor") as caught:
        read_executor(text)
    assert "dask://HOST:PORT" in caught.value.hint()


@pytest.mark.parametrize("words", [("--retries", 3), ("--wait-for-workers", 5)])
def test_options_of_dask_mean_nothing_here(shop: Shop, words: tuple[object, ...]) -> None:
    assert shop.cli("register", "lenet", ONNX).code == 0
    refused = shop.cli("build", "lenet:1", *words)
    assert refused.code == 2
    assert f"{words[0]} belongs to --executor dask://HOST:PORT" in refused.err


def test_a_build_on_this_host_imports_no_dask(shop: Shop, tmp_path: Path) -> None:
    import subprocess

    assert shop.cli("register", "lenet", ONNX).code == 0
    script = (
        "import sys; from modelreg.cli.main import run; code = run(sys.argv[1:]);"
        " assert not {'dask', 'distributed', 'tornado'} & {*sys.modules}; sys.exit(code)"
    )
    words = ["--home", str(shop.path), "build", "lenet:1", "--dry-run"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
