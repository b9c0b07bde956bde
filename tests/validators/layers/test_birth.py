from __future__ import annotations

import math
from typing import Any

from modelreg.validators.layers.birth import LayerError, State, diagnose

LIMIT_DB = 20.0
CLEAN, BAD = 1e-6, 0.5


def layer(name: str, noise: float, own: float | None, *inputs: str, **odd: Any) -> LayerError:
    return LayerError(
        name=name, noise=noise, own=own, odd=odd.get("odd", 0), own_odd=odd.get("own_odd", 0), inputs=inputs
    )


def states(*layers: LayerError) -> dict[str, str]:
    return {name: state.value for name, state in diagnose(layers, limit_db=LIMIT_DB).states.items()}


def test_an_error_is_born_where_a_layer_makes_it_of_right_values_and_carried_behind() -> None:
    found = diagnose(
        [layer("a", CLEAN, CLEAN), layer("b", BAD, BAD, "a"), layer("c", BAD, CLEAN, "b")], limit_db=LIMIT_DB
    )
    assert found.states == {"a": State.OK, "b": State.BORN, "c": State.CARRIED}
    assert (found.first_bad, found.ranking) == ("b", ("b", "a", "c"))


def test_an_error_may_be_born_twice_and_the_first_in_order_is_named() -> None:
    layers = [layer("a", BAD, BAD), layer("b", 0.9, 0.6, "a"), layer("c", 0.9, CLEAN, "b")]
    assert states(*layers) == {"a": "born", "b": "born", "c": "carried"}
    assert diagnose(layers, limit_db=LIMIT_DB).first_bad == "a"


def test_values_that_are_no_numbers_count_more_than_any_noise() -> None:
    layers = [
        layer("a", CLEAN, CLEAN),
        layer("overflow", CLEAN, CLEAN, "a", odd=3, own_odd=3),
        layer("softmax", 0.9, CLEAN, "overflow", odd=9),
        layer("noisy", 0.99, 0.02, "softmax"),
    ]
    found = diagnose(layers, limit_db=LIMIT_DB)
    assert states(*layers) == {"a": "ok", "overflow": "born", "softmax": "carried", "noisy": "born"}
    assert found.ranking[0] == found.first_bad == "overflow"


def test_noise_that_many_layers_add_is_blamed_on_the_one_that_adds_most() -> None:
    layers = [layer("a", 0.004, 0.004), layer("b", 0.009, 0.005, "a"), layer("c", 0.0105, 0.0015, "b")]
    found = diagnose(layers, limit_db=LIMIT_DB)
    assert found.first_bad == "b"
    assert found.states["c"] is State.CARRIED


def test_without_runs_of_single_layers_a_jump_of_the_noise_says_where_it_is_born() -> None:
    layers = [layer("a", CLEAN, None), layer("b", BAD, None, "a"), layer("c", 0.6, None, "b")]
    assert states(*layers) == {"a": "ok", "b": "born", "c": "carried"}
    layers = [layer("a", CLEAN, None), layer("b", CLEAN, None, "a", odd=1), layer("c", math.inf, None, "b", odd=4)]
    assert states(*layers) == {"a": "ok", "b": "born", "c": "carried"}


def test_noise_that_is_no_number_is_bad() -> None:
    assert states(layer("a", math.inf, math.inf)) == {"a": "born"}
    assert states(layer("a", math.nan, math.nan)) == {"a": "born"}


def test_a_branch_does_not_bear_what_its_sibling_made() -> None:
    layers = [
        layer("stem", CLEAN, CLEAN),
        layer("left", BAD, BAD, "stem"),
        layer("right", CLEAN, CLEAN, "stem"),
        layer("add", 0.3, CLEAN, "left", "right"),
    ]
    assert states(*layers) == {"stem": "ok", "left": "born", "right": "ok", "add": "carried"}


def test_an_error_that_everything_behind_gets_over_has_healed() -> None:
    layers = [
        layer("mask", BAD, BAD),
        layer("shown", 0.9, 0.9, "mask", own_odd=4),
        layer("softmax", CLEAN, CLEAN, "shown"),
        layer("out", CLEAN, CLEAN, "softmax"),
    ]
    found = diagnose(layers, limit_db=LIMIT_DB)
    assert states(*layers) == {"mask": "healed", "shown": "healed", "softmax": "ok", "out": "ok"}
    assert found.first_bad == ""
    assert found.ranking[-2:] == ("shown", "mask")


def test_an_output_does_not_heal_and_neither_does_a_value_that_is_no_number() -> None:
    assert states(layer("a", CLEAN, CLEAN), layer("out", BAD, BAD, "a")) == {"a": "ok", "out": "born"}
    layers = [layer("a", CLEAN, CLEAN, odd=1, own_odd=1), layer("softmax", CLEAN, CLEAN, "a")]
    assert states(*layers) == {"a": "born", "softmax": "ok"}


def test_one_reader_that_gets_over_an_error_does_not_heal_it_for_the_other() -> None:
    layers = [
        layer("a", BAD, BAD),
        layer("tanh", CLEAN, CLEAN, "a"),
        layer("linear", BAD, CLEAN, "a"),
        layer("out", BAD, CLEAN, "tanh", "linear"),
    ]
    assert states(*layers) == {"a": "born", "tanh": "ok", "linear": "carried", "out": "carried"}
