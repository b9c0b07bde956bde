from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.errors import UsageError
from modelreg.registry.manifest import Manifest, ReleasedEngine, RequiredPlugin
from modelreg.registry.words import Backend, Json, Precision
from modelreg.runtime.triton.configuration import ServingOptions, make_configuration
from modelreg.runtime.triton.engines import ServedEngine, choose_targets, describe_needs, place_engines
from modelreg.runtime.triton.tensors import TritonRefusalError
from modelreg_testing.records import digest_of
from modelreg_testing.triton import messages, parse

BATCHED = Signature(
    inputs=(TensorSpec(name="image", dtype="float32", shape=("N", 3, "H", "W")),),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=("N", 10)),),
)
FIXED = Signature(
    inputs=(TensorSpec(name="image", dtype="float32", shape=(1, 3, 8, 8)),),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=(1, 10)),),
)


def profile(low: int, best: int, high: int) -> Json:
    return {"image": {"min": [low, 3, 8, 8], "opt": [best, 3, 16, 16], "max": [high, 3, 32, 32]}}


def engine(
    target: str = "sm_90",
    *,
    backend: Backend = Backend.TENSORRT,
    number: int = 1,
    profiles: Sequence[Json] = (),
    variant: Json | None = None,
    **changes: Any,
) -> ServedEngine:
    name = "model.plan" if backend is Backend.TENSORRT else "model.onnx"
    fields: dict[str, Any] = {
        "target": target,
        "backend": backend,
        "backend_version": "10.3.0.26" if backend is Backend.TENSORRT else "1.32.0",
        "precision": Precision.FP16,
        "recipe_digest": digest_of(9),
        "realised": {},
        "gpu": "",
        "driver": "",
        "cuda": "",
        "files": (StoredFile(path=f"{target}/{name}", digest=digest_of(number), size_bytes=100 + number),),
    }
    return ServedEngine(
        engine=ReleasedEngine(**(fields | changes)), recipe={"build": {"profiles": list(profiles)}, "variant": variant}
    )


def configure(*engines: ServedEngine, signature: Signature = BATCHED, **options: Any) -> Any:
    placed = place_engines(engines)
    made = make_configuration(
        "lenet", signature, placed, ServingOptions(**options), parameters={"modelreg.release": "sha256:ab"}
    )
    return parse(made.text)


def test_profiles_say_the_largest_and_the_preferred_batches_and_every_one_is_warmed_up() -> None:
    config = configure(engine(profiles=[profile(1, 4, 8), profile(1, 16, 32)]))
    assert (config.platform, config.backend) == ("tensorrt_plan", "tensorrt")
    assert config.max_batch_size == 32
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 16]
    assert list(config.input[0].dims) == [3, -1, -1]
    assert list(config.output[0].dims) == [10]
    assert list(config.instance_group[0].profile) == ["0", "1"]
    assert config.instance_group[0].kind == messages().ModelInstanceGroup.KIND_GPU
    runs = {run.name: (run.batch_size, list(run.inputs["image"].dims)) for run in config.model_warmup}
    assert runs == {
        "profile 0 min": (1, [3, 8, 8]),
        "profile 0 opt": (4, [3, 16, 16]),
        "profile 0 max": (8, [3, 32, 32]),
        "profile 1 opt": (16, [3, 16, 16]),
        "profile 1 max": (32, [3, 32, 32]),
    }
    assert config.parameters["modelreg.release"].string_value == "sha256:ab"


def test_a_fixed_first_axis_is_served_without_batching() -> None:
    config = configure(engine("cpu", backend=Backend.ONNXRUNTIME), signature=FIXED)
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [1, 3, 8, 8]
    assert not config.HasField("dynamic_batching")
    assert [run.batch_size for run in config.model_warmup] == [0]
    assert config.instance_group[0].kind == messages().ModelInstanceGroup.KIND_CPU


def test_free_dimensions_that_no_profile_bounds_are_not_warmed_up() -> None:
    assert list(configure(engine("cpu", backend=Backend.ONNXRUNTIME)).model_warmup) == []


def test_several_gpus_have_a_plan_each_by_compute_capability() -> None:
    config = configure(
        engine("sm_86", number=1, profiles=[profile(1, 4, 8)]), engine("sm_120", number=2, profiles=[profile(1, 8, 16)])
    )
    assert dict(config.cc_model_filenames) == {"8.6": "model_sm_86.plan", "12.0": "model_sm_120.plan"}
    assert config.max_batch_size == 8
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]


def test_a_plan_that_newer_gpus_load_too_is_the_default() -> None:
    config = configure(engine("sm_80", number=1, hardware_compatibility="AMPERE_PLUS"), engine("sm_90", number=2))
    assert config.default_model_filename == "model_sm_80.plan"


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [("latest:3", "latest", [3]), ("all", "all", []), ("specific:1,4", "specific", [1, 4])],
)
def test_the_version_policy_is_written(text: str, field: str, values: list[int]) -> None:
    policy = configure(engine(), version_policy=text).version_policy
    assert policy.WhichOneof("policy_choice") == field
    numbers = list(policy.specific.versions) or ([policy.latest.num_versions] if field == "latest" else [])
    assert numbers == values


@pytest.mark.parametrize("text", ["", "latest", "latest:0", "latest:1,2", "all:1", "specific:", "specific:a", "new:1"])
def test_a_version_policy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no version policy"):
        configure(engine(), version_policy=text)


def test_more_than_the_profiles_allow_is_refused() -> None:
    with pytest.raises(UsageError, match="more than the profiles allow, 8"):
        configure(engine(profiles=[profile(1, 4, 8)]), max_batch=9)
    with pytest.raises(UsageError, match="--preferred-batch 6"):
        configure(engine(profiles=[profile(1, 4, 8)]), max_batch=5, preferred_batches=(6,))
    config = configure(engine(profiles=[profile(1, 4, 8)]), max_batch=6, preferred_batches=(6, 2))
    assert (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == (6, [2, 6])
    with pytest.raises(UsageError, match="no batch that Triton could fill"):
        configure(engine("cpu", backend=Backend.ONNXRUNTIME), signature=FIXED, max_batch=2)


def test_profiles_that_take_no_lone_request_are_refused() -> None:
    with pytest.raises(TritonRefusalError, match="batch below 2"):
        configure(engine(profiles=[profile(2, 4, 8)]))


def test_engines_of_different_types_are_not_one_model() -> None:
    halved = engine("sm_86", number=2, variant={"kind": "fp16", "keep_io_types": False})
    assert configure(halved).input[0].data_type == messages().TYPE_FP16
    with pytest.raises(TritonRefusalError, match="different types"):
        configure(engine(), halved)


def manifest(*engines: ServedEngine) -> Manifest:
    return Manifest(
        model="lenet",
        version=1,
        source_digest=digest_of(3),
        signature=BATCHED,
        engines=tuple(each.engine for each in engines),
    )


def test_a_release_for_two_backends_needs_a_choice() -> None:
    release = manifest(engine("cpu", backend=Backend.ONNXRUNTIME), engine("sm_90", number=2))
    with pytest.raises(TritonRefusalError, match="one backend"):
        choose_targets(release, ())
    assert [each.target for each in choose_targets(release, ("sm_90",))] == ["sm_90"]
    with pytest.raises(TritonRefusalError, match="no target 'sm_75'"):
        choose_targets(release, ("sm_75",))


def test_two_versions_of_tensorrt_are_not_one_model_unless_their_plans_load_in_both() -> None:
    one, other = engine("sm_86"), engine("sm_90", number=2, backend_version="10.9.0.34")
    with pytest.raises(TritonRefusalError, match="one TensorRT version"):
        choose_targets(manifest(one, other), ())
    compatible = engine("sm_90", number=2, backend_version="10.9.0.34", version_compatible=True)
    assert len(choose_targets(manifest(one, compatible), ())) == 2


def test_tensorrt_rtx_is_refused() -> None:
    with pytest.raises(TritonRefusalError, match="no backend for tensorrt-rtx"):
        choose_targets(manifest(engine(backend=Backend.TENSORRT_RTX)), ())


def test_different_files_of_one_name_are_refused() -> None:
    def with_plugin(target: str, number: int) -> ServedEngine:
        plan = StoredFile(path=f"{target}/model.plan", digest=digest_of(number), size_bytes=1)
        plugin = StoredFile(path=f"{target}/libops.so", digest=digest_of(number + 10), size_bytes=1)
        plugins = (RequiredPlugin("libops.so", plugin.digest),)
        return engine(target, number=number, files=(plan, plugin), plugins=plugins)

    with pytest.raises(TritonRefusalError, match=r"different files 'libops\.so'"):
        place_engines([with_plugin("sm_86", 1), with_plugin("sm_90", 2)])
    assert any("libops.so" in need for need in describe_needs([with_plugin("sm_86", 1)]))


def test_what_a_server_needs_is_said() -> None:
    assert describe_needs([engine()]) == [
        "the server must have TensorRT 10.3.0.26",
        "sm_90 serves compute capability 9.0 alone",
    ]
    assert "version-compatible=true" in describe_needs([engine(version_compatible=True)])[0]
