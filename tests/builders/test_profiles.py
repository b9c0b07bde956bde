from __future__ import annotations

import pytest

from modelreg.builders.profiles import (
    DEFAULT_BATCH,
    ProfileShapes,
    pair_profiles,
    parse_shapes,
    resolve_profiles,
)
from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import UsageError

Dimension = int | str | None


def signature(**inputs: tuple[Dimension, ...] | None) -> Signature:
    specs = tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in inputs.items())
    return Signature(inputs=specs, outputs=())


def profile(minimum: str = "", optimum: str = "", maximum: str = "") -> ProfileShapes:
    shapes = [parse_shapes(text) if text else {} for text in (minimum, optimum, maximum)]
    return ProfileShapes(min=shapes[0], opt=shapes[1], max=shapes[2])


IMAGE = signature(image=("N", 3, 224, 224))
FREE = signature(x=("batch", 3, "height", "width"))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("image:1x3x224x224", {"image": (1, 3, 224, 224)}),
        ("a:1x2, b:3", {"a": (1, 2), "b": (3,)}),
        ("'a':1x2,\"b\":3", {"a": (1, 2), "b": (3,)}),
        ("module/a:0:1x2", {"module/a:0": (1, 2)}),
        ("size:scalar", {"size": ()}),
        ("a:0x2", {"a": (0, 2)}),
    ],
)
def test_shapes_are_read_in_trtexec_s_spelling(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["", "image", "1x3", "image:1xN", "image:-1x3", "image:1x3,", ":1x3", "image:1x³"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not NAME:1x3x224x224"):
        parse_shapes(text)


@pytest.mark.parametrize("length", ["2147483648", "99999999999999999999", "9" * 5000])
def test_a_dimension_that_no_tensor_can_have_is_refused(length: str) -> None:
    with pytest.raises(UsageError, match="input 'image' cannot be that long"):
        parse_shapes(f"image:{length}x1x28x28")
    assert parse_shapes("image:0000000000002147483647") == {"image": (2147483647,)}


def test_one_input_has_one_shape() -> None:
    with pytest.raises(UsageError, match="'a' has two shapes"):
        parse_shapes("a:1,a:2")


def test_repeated_options_are_paired_in_order() -> None:
    first, second = pair_profiles(numbers=[0, 1], minima=["x:1", "x:8"], optima=["x:2", "x:9"], maxima=["x:4", "x:16"])
    assert (first.min, first.opt, first.max) == ({"x": (1,)}, {"x": (2,)}, {"x": (4,)})
    assert (second.min, second.opt, second.max) == ({"x": (8,)}, {"x": (9,)}, {"x": (16,)})
    (alone,) = pair_profiles(numbers=[], minima=[], optima=["x:2"], maxima=[])
    assert (alone.min, alone.opt) == ({}, {"x": (2,)})


@pytest.mark.parametrize(
    ("numbers", "minima", "maxima", "fact"),
    [
        ([0, 1], ["x:1"], ["x:2", "x:3"], "--minShapes is given 1 times for 2 profiles"),
        ([1], ["x:1"], ["x:2"], "numbered from 0, each once; --profile has 1"),
        ([0, 0], ["x:1", "x:1"], ["x:2", "x:2"], "--profile has 0, 0"),
        ([0], [], [], "--profile has no shapes"),
    ],
)
def test_options_that_do_not_pair_up_are_refused(
    numbers: list[int], minima: list[str], maxima: list[str], fact: str
) -> None:
    with pytest.raises(UsageError, match=fact):
        pair_profiles(numbers=numbers, minima=minima, optima=[], maxima=maxima)


def test_a_free_batch_has_a_default() -> None:
    (found,) = resolve_profiles([], IMAGE)
    assert found == {"image": {point: [batch, 3, 224, 224] for point, batch in DEFAULT_BATCH.items()}}
    assert (DEFAULT_BATCH["min"], DEFAULT_BATCH["opt"], DEFAULT_BATCH["max"]) == (1, 8, 64)


def test_fixed_shapes_need_no_profile_and_matching_ones_do_no_harm() -> None:
    fixed = signature(x=(1, 3))
    assert resolve_profiles([], fixed) == []
    assert resolve_profiles([profile(optimum="x:1x3")], fixed) == []


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (FREE, r"input 'x' has free dimensions besides the batch \(height, width\), so it needs a profile"),
        (signature(x=("N", None)), r"besides the batch \(dimension 1\)"),
        (signature(x=(1, "length")), r"besides the batch \(length\)"),
        (signature(x=None), "input 'x' has no declared shape"),
    ],
)
def test_other_free_dimensions_need_a_profile(model: Signature, fact: str) -> None:
    with pytest.raises(UsageError, match=fact) as caught:
        resolve_profiles([], model)
    assert "--minShapes x:" in caught.value.hint()


@pytest.mark.parametrize(
    ("given", "points"),
    [
        (("x:1x3x8x8", "x:2x3x8x8", "x:4x3x8x8"), (1, 2, 4)),
        (("", "x:2x3x8x8", ""), (2, 2, 2)),
        (("x:1x3x8x8", "", "x:4x3x8x8"), (1, 4, 4)),
        (("x:1x3x8x8", "x:2x3x8x8", ""), (1, 2, 2)),
        (("x:1x3x8x8", "", ""), (1, 1, 1)),
    ],
)
def test_points_left_out_follow_from_the_others(given: tuple[str, str, str], points: tuple[int, int, int]) -> None:
    (found,) = resolve_profiles([profile(*given)], FREE)
    assert tuple(found["x"][point][0] for point in ("min", "opt", "max")) == points


@pytest.mark.parametrize(
    ("given", "model", "fact"),
    [
        (("y:1x3x8x8",), FREE, "for an input 'y' that the model does not have"),
        (("x:1x3x8",), FREE, "1x3x8 has 3 dimensions, the model takes batch x 3 x height x width"),
        (("x:1x4x8x8",), FREE, "min 1x4x8x8 has 4 in dimension 1, which is fixed at 3"),
        (("x:2x3x8x8", "x:1x3x8x8", "x:4x3x8x8"), FREE, "min 2x3x8x8 is above opt 1x3x8x8"),
        (("x:1x3x8x8", "x:8x3x8x8", "x:4x3x8x8"), FREE, "opt 8x3x8x8 is above max 4x3x8x8"),
        (("", "x:0x3x8x8", ""), FREE, "opt 0x3x8x8 is empty"),
        (("a:1x2",), signature(a=("N", 2), b=("N", 2)), "has no shape for input 'b', which has free dimensions"),
        (("", "a:1x2,b:2x2", ""), signature(a=("N", 2), b=("N", 2)), "min of 'N' is 1 for input 'a' and 2 for 'b'"),
    ],
)
def test_a_profile_that_does_not_fit_the_model_is_refused(given: tuple[str, ...], model: Signature, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        resolve_profiles([profile(*given)], model)


def test_the_second_profile_is_named_by_its_number() -> None:
    good = profile(optimum="x:1x3x8x8")
    with pytest.raises(UsageError, match="profile 1, input 'x'"):
        resolve_profiles([good, profile(optimum="x:1x3x8")], FREE)
    assert len(resolve_profiles([good, good], FREE)) == 2


def test_an_empty_minimum_and_an_input_without_a_declared_shape_are_taken_as_given() -> None:
    (found,) = resolve_profiles([profile("x:0x3", "x:1x3", "x:2x3")], signature(x=("N", 3)))
    assert found["x"]["min"] == [0, 3]
    (found,) = resolve_profiles([profile(optimum="x:2x5")], signature(x=None))
    assert found["x"]["opt"] == [2, 5]


def test_fixed_inputs_beside_a_free_one_are_checked_and_left_out() -> None:
    model = signature(x=("N", 3), size=(2,))
    (found,) = resolve_profiles([profile(optimum="x:1x3,size:2")], model)
    assert list(found) == ["x"]
    with pytest.raises(UsageError, match="which is fixed at 2"):
        resolve_profiles([profile(optimum="x:1x3,size:4")], model)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1x3x32x32", "Write the input's name before it: NAME:1x3x32x32"),
        ("image:[1,3,32,32]", "joined by x, without brackets: image:1x3x32x32."),
        ("image:(1, 3)", "without brackets: image:1x3."),
        ("image:Nx3x32x32", "A dimension is a number"),
        ("image:-1x3", "A dimension is a number"),
        ("image", "shapes of several inputs by commas"),
    ],
)
def test_the_hint_fits_what_was_written(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shapes(text)
    assert hint in caught.value.hint()


def test_a_wrong_rank_shows_a_right_one() -> None:
    with pytest.raises(UsageError, match="opt 8x3x32 has 3 dimensions") as caught:
        resolve_profiles([profile("", "image:8x3x32", "")], IMAGE)
    assert caught.value.hint() == "Give all 4 of them, for example image:1x3x224x224."


def test_only_what_was_given_is_named() -> None:
    with pytest.raises(UsageError, match="min 8x3x8x8 is above max 4x3x8x8"):
        resolve_profiles([profile("x:8x3x8x8", "", "x:4x3x8x8")], FREE)
