"""The main job on the GPU, command by command: register, build, validate, promote, roll back."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.gpu_lab import Json, Lab

pytestmark = pytest.mark.gpu

LENET = ROOT / "examples" / "lenet"
REFERENCES = ROOT / "tests" / "gpu" / "references.py"
NETWORKS = ("lenet", "resnet18")
PRECISIONS = ("fp32", "fp16", "int8")

each_network = pytest.mark.parametrize("network", NETWORKS)
each_precision = pytest.mark.parametrize("precision", PRECISIONS)


def test_a_registry_is_made_whose_channel_requires_this_gpu(lab: Lab) -> None:
    lab.modelreg("init")
    with (lab.home / "config.toml").open("a") as config:
        config.write(f"\n{lab.setting.home_settings}")
    lab.modelreg("doctor")


def test_the_toolchain_is_added(lab: Lab) -> None:
    if lab.setting.is_rehearsal:
        pytest.skip("the rehearsal builds with our own ONNX Runtime")
    added = lab.modelreg("toolchain", "add", "trt", "--python", lab.setting.toolchain, "--json").document
    lab.recorder.body["environment"]["toolchain"] = added["toolchain"]


@pytest.mark.parametrize(("version", "message"), [(1, "first"), (2, "trained for longer")])
def test_lenet_is_registered_with_what_pytorch_answers_on_this_gpu(lab: Lab, version: int, message: str) -> None:
    register(
        lab,
        "lenet",
        LENET / f"lenet-v{version}.onnx",
        weights=LENET / f"lenet-v{version}.safetensors",
        inputs=LENET / f"golden-v{version}.npz",
        message=message,
    )


def test_resnet18_is_made_and_registered_with_what_pytorch_answers_on_this_gpu(lab: Lab) -> None:
    small = ("--samples", 100, "--calibration-samples", 100) if lab.setting.is_rehearsal else ()
    folder = lab.make_resnet("resnet18", *small)
    register(
        lab,
        "resnet18",
        folder / "resnet18.onnx",
        weights=folder / "resnet18.safetensors",
        inputs=folder / "golden.safetensors",
        message="random weights, fitted",
    )


def register(lab: Lab, network: str, model: Path, *, weights: Path, inputs: Path, message: str) -> None:
    reference = f"{REFERENCES}:{network}"
    registered = lab.modelreg(
        *("register", network, model, "--reference", reference, "--weights", weights, "--inputs", inputs),
        *("--message", message, "--json"),
    )
    golden = registered.document["golden_set"]
    assert golden is not None
    lab.recorder.add("facts", {"what": f"golden set of {network}", **golden, "device": lab.setting.device})


@each_network
@each_precision
def test_an_engine_is_built(lab: Lab, network: str, precision: str) -> None:
    engine = build(lab, network, precision)
    assert engine["target"] == lab.setting.target
    plan = lab.fetch_plan(engine)
    lab.plans[f"{network} {precision}"] = plan
    entry = lab.recorder.engine(network, precision)
    entry["header"] = plan.read_bytes()[:64].hex()
    lab.recorder.write()


def build(lab: Lab, network: str, precision: str, *words: object, version: int = 1) -> Json:
    """Build one engine and record it; return it as `build` tells of it."""
    calibration = calibrate(lab, network) if precision == "int8" else []
    reference = f"{network}:{version}"
    command = ("build", reference, "--precision", precision, *lab.setting.build_words, *profile(network, lab))
    built = lab.modelreg(*command, *calibration, *words, "--json")
    (cell,) = built.document["cells"]
    assert cell["status"] == "built"
    engine: Json = cell["engine"]
    kept = ("id", "precision", "size_bytes", "build_s", "plan", "backend", "backend_version", "recipe", "realised")
    entry = {"network": network, "version": version, **{key: engine[key] for key in kept}, "wall_s": built.seconds}
    lab.recorder.add("engines", entry)
    return engine


def calibrate(lab: Lab, network: str) -> list[object]:
    """Return the words that say how INT8 ranges are found; docs/resnet50.md says why a ResNet has another method."""
    if network == "lenet":
        return ["--calibration", LENET / "calibration.npz"]
    made = lab.folder / network / "calibration.safetensors"
    return ["--calibration", made, "--calibration-method", "percentile"]


def profile(network: str, lab: Lab) -> list[str]:
    """Return the shapes of a ResNet's profile: tuned for the batch of 64 that is timed."""
    if network == "lenet" or lab.setting.is_rehearsal:
        return []
    image = f"3x{lab.setting.image_size}x{lab.setting.image_size}"
    return ["--minShapes", f"image:1x{image}", "--optShapes", f"image:64x{image}", "--maxShapes", f"image:64x{image}"]


@each_network
@each_precision
def test_an_engine_passes_every_gate_against_pytorch(lab: Lab, network: str, precision: str) -> None:
    entry = lab.recorder.engine(network, precision)
    validated = lab.modelreg("validate", f"{network}:1", "--engine", entry["id"], "--json", expect=(0, 3))
    (validation,) = validated.document["validations"]
    entry |= {"verdict": validation["verdict"], "gates": validation["gates"]}
    lab.recorder.write()
    failed = [
        gate["gate"] for gate in validation["gates"] if gate["outcome"] != "pass" and gate["outcome"] != "skipped"
    ]
    # So small a network may gain nothing by INT8 on so large a GPU, and then the gate of its worth has to say so.
    allowed = [[], ["gain"]] if (network, precision) == ("lenet", "int8") else [[]]
    assert failed in allowed, validated.out[-3000:]


def test_a_release_is_promoted_another_one_after_it_and_rolled_back(lab: Lab) -> None:
    lab.modelreg("promote", "lenet:1", "--to", "production", "-m", "first release")
    build(lab, "lenet", "fp16", version=2)
    lab.modelreg("validate", "lenet:2")
    lab.modelreg("promote", "lenet:2", "--to", "production", "-m", "trained for longer", "--expect-current", "1")
    assert served(lab, "lenet") == (2, "fp16", 2)
    lab.modelreg("promote", "lenet:1", "--to", "production", "--expect-current", "1", expect=4)
    drill = lab.modelreg("rollback", "lenet", "--channel", "production", "--drill")
    lab.modelreg("rollback", "lenet", "--channel", "production", "-m", "second thoughts")
    version, _, generation = served(lab, "lenet")
    assert (version, generation) == (1, 3)
    history = lab.modelreg("history", "lenet", "--json").document
    lab.recorder.add("facts", {"what": "lenet after a rollback", "drill": drill.out, "history": history})
    assert lab.setting.target in lab.modelreg("show", "lenet").out


def served(lab: Lab, network: str) -> tuple[int, str, int]:
    """Return version, precision and generation of what this host would load."""
    which = lab.modelreg("which", f"{network}@production", "--json").document
    path = lab.modelreg("which", f"{network}@production", "--path-only").out.strip()
    assert Path(path).is_file()
    (engine,) = (each for each in which["engines"] if each["target"] == lab.setting.target)
    return which["version"], engine["precision"], which["generation"]


def test_another_precision_is_promoted_and_rolled_back(lab: Lab) -> None:
    lab.modelreg("promote", "resnet18:1", "--to", "production", "--precision", "fp32", "-m", "to be safe")
    lab.modelreg("promote", "resnet18:1", "--to", "production", "--precision", "fp16", "-m", "faster")
    assert served(lab, "resnet18") == (1, "fp16", 2)
    lab.modelreg("rollback", "resnet18@production", "-m", "drill")
    assert served(lab, "resnet18") == (1, "fp32", 3)
    lab.modelreg("which", "resnet18@production", "--explain")


def test_everything_is_in_order_afterwards(lab: Lab) -> None:
    lab.modelreg("verify", "--events")
    lab.modelreg("doctor")
    for network in NETWORKS:
        lab.modelreg("show", f"{network}:1", "-v")
