"""Recipes: everything that decides a build, as canonical JSON with a digest.

Two digests: one of the `variant` part alone, so that builds which differ in backend options share a variant, and
one of the whole. What does not change the bytes (paths, timeouts, the number of threads) is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from modelreg.builders.calibration import CalibrationSet, recipe_part
from modelreg.builders.interface import BackendPart, BuildOptions
from modelreg.builders.precision import Translation
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import UsageError
from modelreg.registry.words import Backend, Json

VARIANT_REVISION = 3
"""Raised when the code that makes variants changes what it makes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe with its digests."""

    body: Json

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the whole recipe."""
        return json_digest(self.body)

    @property
    def variant(self) -> Json | None:
        """Return the part that decides the variant, or None when the source is built as it is."""
        part: Json | None = self.body["variant"]
        return part

    @property
    def variant_digest(self) -> str:
        """Return the SHA-256 of the part that decides the variant, or an empty string."""
        return "" if self.variant is None else json_digest(self.variant)


def make_recipe(
    translation: Translation,
    options: BuildOptions,
    *,
    backend: Backend,
    part: BackendPart,
    calibration: CalibrationSet | None,
    tools: dict[str, str],
) -> Recipe:
    """
    Return the recipe of a build.

    Args:
        translation: What the backend is told for the precision.
        options: What the user said.
        backend: Who builds.
        part: What the backend's builder makes of the options.
        calibration: The checked calibration set; for INT8.
        tools: Versions of the libraries that make the variant.

    Raises:
        UsageError: Nodes or op types are excluded, but nothing is converted.
    """
    body = {
        "precision": str(translation.precision),
        "backend": str(backend),
        "flags": sorted({*translation.flags, *part.flags}),
        "variant": _variant(translation, options, calibration, tools),
        "build": part.body,
    }
    return Recipe({**body, **_typing(translation, options), **_implicit(translation, options, calibration)})


def variant_recipe_digest(recipe: Json) -> str:
    """Return the digest that `find_variant` knows the variant of an engine's recipe by, or an empty string."""
    return Recipe(recipe).variant_digest


def _typing(translation: Translation, options: BuildOptions) -> Json:
    """Return whether types bind, for TensorRT, and what a weakly typed network keeps in FP32 by constraints."""
    body: Json = {"typing": translation.typing} if translation.typing else {}
    constraints = options.tensorrt.precision_constraints
    if translation.is_chosen_by_layer and constraints != "auto":
        body["constraints"] = constraints
    if translation.pins is not None:
        body["pins"] = {
            "settings": translation.pins,
            "excluded_nodes": sorted(set(options.nodes_to_exclude)),
            "excluded_op_types": sorted(set(options.op_types_to_exclude)),
        }
    return body


def _implicit(translation: Translation, options: BuildOptions, calibration: CalibrationSet | None) -> Json:
    if not translation.calibrates or calibration is None or options.calibration is None:
        return {}
    return {"implicit_calibration": recipe_part(options.calibration, calibration)}


def _variant(
    translation: Translation, options: BuildOptions, calibration: CalibrationSet | None, tools: dict[str, str]
) -> Json | None:
    if not translation.variant:
        excluded = options.nodes_to_exclude or options.op_types_to_exclude
        if excluded and not translation.can_exclude:
            raise UsageError(
                f"{translation.precision} converts nothing, so nothing can be excluded",
                hint="Leave --nodes-to-exclude and --op-types-to-exclude out.",
            )
        return None
    body: Json = {
        "kind": translation.variant,
        "revision": VARIANT_REVISION,
        "tools": tools,
        "settings": translation.settings,
        "excluded_nodes": sorted(set(options.nodes_to_exclude)),
        "excluded_op_types": sorted(set(options.op_types_to_exclude)),
    }
    if translation.variant == "fp16":
        body["keep_io_types"] = options.keep_io_types
    if calibration is not None and options.calibration is not None:
        body["calibration"] = recipe_part(options.calibration, calibration)
    return body
