from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.builders.calibration import CalibrationSet
from modelreg.builders.interface import BackendPart, BuildOptions, CalibrationOptions
from modelreg.builders.precision import translate
from modelreg.builders.recipe import Recipe, make_recipe, variant_recipe_digest
from modelreg.registry.digests import canonical_json, json_digest
from modelreg.registry.errors import UsageError
from modelreg.registry.words import Backend, Precision

TOOLS = {"onnx": "1.20.0", "onnxruntime": "1.23.0"}


def recipe(
    precision: Precision, options: BuildOptions, *, level: str = "extended", tools: dict[str, str] | None = None
) -> Recipe:
    calibration = None
    if options.calibration is not None:
        calibration = CalibrationSet(
            path=options.calibration.path, digest="c" * 64, keys={}, rows=(0, 1), batch=1, warnings=()
        )
    return make_recipe(
        translate(precision, Backend.ONNXRUNTIME, "1.23.0"),
        options,
        backend=Backend.ONNXRUNTIME,
        part=BackendPart(body={"optimisation_level": level}),
        calibration=calibration,
        tools=tools or TOOLS,
    )


def int8(**calibration: object) -> BuildOptions:
    return BuildOptions(calibration=CalibrationOptions(path=Path("/any"), **calibration))  # type: ignore[arg-type]


def test_the_digest_is_of_the_canonical_json_and_ignores_the_order_of_names() -> None:
    one = recipe(Precision.FP16, BuildOptions(nodes_to_exclude=("b", "a", "a")))
    two = recipe(Precision.FP16, BuildOptions(nodes_to_exclude=("a", "b")))
    assert one.digest == two.digest == json_digest(one.body)
    assert canonical_json(one.body) == canonical_json(two.body)


def test_backend_options_change_the_recipe_but_share_the_variant() -> None:
    one, two = (recipe(Precision.FP16, BuildOptions(), level=level) for level in ("basic", "extended"))
    assert one.digest != two.digest
    assert one.variant_digest == two.variant_digest


@pytest.mark.parametrize(
    "changed",
    [
        recipe(Precision.FP16, BuildOptions(nodes_to_exclude=("a",))),
        recipe(Precision.FP16, BuildOptions(op_types_to_exclude=("Gemm",))),
        recipe(Precision.FP16, BuildOptions(keep_io_types=False)),
        recipe(Precision.FP16, BuildOptions(), tools={**TOOLS, "onnx": "1.21.0"}),
        recipe(Precision.INT8, int8()),
    ],
)
def test_what_decides_the_variant_changes_both_digests(changed: Recipe) -> None:
    plain = recipe(Precision.FP16, BuildOptions())
    assert changed.variant_digest != plain.variant_digest
    assert changed.digest != plain.digest


@pytest.mark.parametrize("changed", [{"method": "minmax"}, {"samples": 2}, {"samples": 2, "seed": 1}])
def test_how_it_is_calibrated_changes_the_variant(changed: dict[str, object]) -> None:
    assert recipe(Precision.INT8, int8(**changed)).variant_digest != recipe(Precision.INT8, int8()).variant_digest


def test_what_does_not_decide_the_bytes_is_not_in_the_recipe() -> None:
    plain = recipe(Precision.INT8, int8())
    assert recipe(Precision.INT8, BuildOptions(calibration=int8().calibration, timeout_s=5)).digest == plain.digest
    assert "/any" not in canonical_json(plain.body).decode()


def test_a_percentile_that_is_not_used_changes_nothing() -> None:
    minmax = recipe(Precision.INT8, int8(method="minmax"))
    assert recipe(Precision.INT8, int8(method="minmax", percentile=99.0)).digest == minmax.digest


def test_fp32_has_no_variant() -> None:
    made = recipe(Precision.FP32, BuildOptions())
    assert made.variant is None
    assert variant_recipe_digest(made.body) == ""


def test_an_engine_s_recipe_gives_its_variant_s_digest() -> None:
    made = recipe(Precision.FP16, BuildOptions())
    assert variant_recipe_digest(made.body) == made.variant_digest == json_digest(made.body["variant"])


def test_excluding_nodes_from_fp32_means_nothing() -> None:
    with pytest.raises(UsageError, match="nothing can be excluded"):
        recipe(Precision.FP32, BuildOptions(nodes_to_exclude=("a",)))
