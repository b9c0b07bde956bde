"""One network with all that a release is made of: each part of it can be faulty."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from fault_corpus.places import place
from modelreg.registry.words import Json, Precision

Array = NDArray[Any]
Change = Callable[["Case"], "Case"]


MASKED = ("/layers.0/attention/Add", "/layers.1/attention/Add")
"""Where the mask is added to the scores: INT8 of a transformer leaves them out, or it has no levels for the scores."""


@dataclass(frozen=True, kw_only=True)
class VariantRequest:
    """
    A variant that was made, for a fault of the converter to be planted in.

    Attributes:
        source: The ONNX it was made of.
        target: The variant.
        make_again: Makes the same kind of variant of another source.
    """

    source: Path
    target: Path
    make_again: Callable[[Path, Path], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """
    What is registered, built and validated.

    Attributes:
        network: Which of the three.
        seed: Which training of it.
        model: The ONNX that is registered.
        golden: The golden set.
        metadata: Its metadata.
        calibration: The calibration set.
        precision: What is built.
        options: More options of `build`.
        change_settings: What a converter of another kind would be set to.
        change_variant: A converter's fault: changes the variant that was made.
        policy: A policy of the model's own, as TOML.
        with_sibling: Whether its FP16 sibling is built too, for INT8 to be worth something beside it.
        arrays: All that the network's file has.
    """

    network: str
    seed: int
    model: onnx.ModelProto
    golden: dict[str, Array]
    metadata: dict[str, str]
    calibration: Array
    precision: Precision
    arrays: dict[str, Array]
    options: tuple[str, ...] = ()
    change_settings: Callable[[Json], Json] | None = None
    change_variant: Callable[[VariantRequest], None] | None = None
    policy: str = ""
    with_sibling: bool = False

    @property
    def input(self) -> str:
        """Return the name of the input."""
        return str(self.model.graph.input[0].name)

    @property
    def inputs(self) -> Array:
        """Return the golden inputs."""
        return self.golden[f"input.{self.input}"]

    def with_golden(self, **arrays: Array) -> Case:
        """Return the case with other golden arrays; `__` stands for the point in a key."""
        return replace(self, golden={**self.golden, **{k.replace("__", "."): v for k, v in arrays.items()}})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """
    One fault in one network.

    Attributes:
        kind: What is wrong, in a word or three.
        network: Where it is planted.
        precision: What is built.
        plant: Makes the faulty case of a healthy one.
        layer: The node of the ONNX that is the first to give something wrong; empty where it is none (the reference,
            the golden set, the calibration).
        says: What happened, for the table.
        is_network_right: Whether the ONNX is right as it is planted: a precision cannot hold it, or a converter is
            faulty. The comparison of layers takes it for its reference then, else the healthy network.
    """

    kind: str
    network: str
    precision: Precision
    plant: Change = field(repr=False)
    layer: str = ""
    says: str = ""
    is_network_right: bool = False

    @property
    def name(self) -> str:
        """Return a name that a model can have."""
        return f"{self.kind}-{self.network}-{self.precision}".replace(" ", "-").lower()


def plant(fault: Fault) -> Case:
    """Return the faulty case."""
    return fault.plant(healthy_case(fault.network, fault.precision))


def healthy_case(network: str, precision: Precision, seed: int = 0) -> Case:
    """Return a case with nothing wrong; the arrays are shared, the model is a copy."""
    arrays = _arrays(network, seed)
    name = "ids" if network == "transformer" else "image"
    golden = {f"input.{name}": feed(arrays["input"]), "label": arrays["label"], "slice": arrays["slice"]}
    golden |= {key: value for key, value in arrays.items() if key.startswith("output.")}
    is_masked = network == "transformer" and precision is Precision.INT8
    names = ", ".join(f'"{each}"' for each in arrays["slice_names"])
    return Case(
        network=network,
        seed=seed,
        model=model_of(network, seed),
        golden=golden,
        metadata={"slice_names": f"[{names}]"},
        calibration=feed(arrays["calibration"]),
        precision=precision,
        arrays=arrays,
        options=("--nodes-to-exclude", ",".join(MASKED)) if is_masked else (),
    )


def feed(values: Array) -> Array:
    """Return what the network takes: images from 0 to 1 of bytes, ids as they are."""
    return values.astype(np.float32) / np.float32(255) if values.dtype == np.uint8 else values


def model_of(network: str, seed: int) -> onnx.ModelProto:
    """Return a network as it was exported."""
    return deepcopy(_model(network, seed))


@lru_cache(maxsize=40)
def _model(network: str, seed: int) -> onnx.ModelProto:
    return onnx.load(place(f"{network}-{seed}.onnx"))


@lru_cache(maxsize=40)
def _arrays(network: str, seed: int) -> dict[str, Array]:
    with np.load(place(f"{network}-{seed}.npz")) as found:
        return dict(found)
