"""Where a version's golden set comes from: a file, or a PyTorch reference that is run once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.progress import Reporter
from modelreg.cli.render import print_note, print_warning
from modelreg.registry.errors import UsageError

if TYPE_CHECKING:
    from modelreg.registry.records import GoldenContents
    from modelreg.registry.sources.inspect import InspectedSource
    from modelreg.registry.words import Json

_SHOWN_BYTES = 256 << 10  # a reference may print without end


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSource:
    """Where the golden set comes from: a file, or a PyTorch reference with its inputs."""

    golden: Path | None
    reference: str | None
    weights: Path | None
    inputs: str | None
    activations: tuple[str, ...]
    activation_bytes: int | None
    seed: int | None
    timeout_s: float | None

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.golden is not None and self.reference is not None:
            raise UsageError("--golden and --reference exclude each other")
        if self.reference is not None and self.inputs is None:
            raise UsageError(
                "--reference needs --inputs", hint="Give an npz, npy or safetensors file, or FILE.py:iterator."
            )
        belonging = {
            "--weights": self.weights is not None,
            "--inputs": self.inputs is not None,
            "--activations": bool(self.activations),
            "--activation-bytes": self.activation_bytes is not None,
            "--seed": self.seed is not None,
            "--timeout": self.timeout_s is not None,
        }
        if self.reference is None and any(belonging.values()):
            given = next(name for name, is_given in belonging.items() if is_given)
            raise UsageError(f"{given} belongs to --reference", hint="Add --reference FILE.py:factory.")
        if self.activation_bytes is not None and not self.activations:
            raise UsageError("--activation-bytes belongs to --activations", hint="Add --activations all.")

    @property
    def wanted_activations(self) -> tuple[tuple[str, ...], int] | None:
        """Return which activations are to be kept and in how many bytes, or None for none."""
        from modelreg.validators.activations import DEFAULT_BYTES

        return (self.activations, self.activation_bytes or DEFAULT_BYTES) if self.activations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGolden:
    """A checked golden set in its canonical form, not yet stored; `origin` says what it holds too."""

    path: Path
    samples: int
    origin: Json
    contents: GoldenContents


def prepare_golden(
    wanted: GoldenSource,
    inspected: InspectedSource,
    folder: Path,
    reporter: Reporter,
    *,
    timeout_s: float,
    verbose: bool,
) -> PreparedGolden | None:
    """Check the golden set, or make it, before anything is stored; `timeout_s` holds where `wanted` has none."""
    path = folder / "golden.safetensors"
    if wanted.golden is not None:
        return _take_golden(wanted.golden, inspected, path)
    if wanted.reference is None:
        return None
    from modelreg.validators.reference_capture import capture_reference, check_capture

    assert wanted.inputs is not None
    check_capture(reference=wanted.reference, weights=wanted.weights, inputs=wanted.inputs)
    if wanted.weights is None and ".py:" in wanted.reference:
        print_warning(f"no --weights: the reference has whatever weights {wanted.reference} makes")
    done = 0
    with showing(folder / "reference.log", verbose=verbose) as log, reporter.step("running the reference") as tell:

        def add(samples: int) -> None:
            nonlocal done
            done += samples
            tell(None, f"{done} samples")

        origin = capture_reference(
            reference=wanted.reference,
            weights=wanted.weights,
            inputs=wanted.inputs,
            signature=inspected.signature,
            seed=wanted.seed or 0,
            activations=wanted.wanted_activations,
            destination=path,
            progress=add,
            timeout_s=wanted.timeout_s or timeout_s,
            log_path=log,
        )
    return _describe(path, samples=origin["samples"], origin=origin)


@contextmanager
def showing(log: Path, *, verbose: bool) -> Iterator[Path]:
    """Show at the end, however that comes, what was written to `log` last."""
    try:
        yield log
    finally:
        text = _read_end(log).strip() if verbose and log.exists() else ""
        if text:
            print_note(text)


def _read_end(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        return file.read().decode(errors="replace")


def _take_golden(source: Path, inspected: InspectedSource, path: Path) -> PreparedGolden:
    from modelreg.registry.tensor_sets import open_tensor_set
    from modelreg.validators.golden import check_golden, write_golden

    with open_tensor_set(source) as tensors:
        checked = check_golden(tensors, inspected.signature)
        write_golden(tensors, path)
    return _describe(path, samples=checked.samples, origin={"kind": "file", "file": source.name})


def _describe(path: Path, *, samples: int, origin: Json) -> PreparedGolden:
    from modelreg.registry.tensor_sets import open_tensor_set
    from modelreg.validators.golden import describe_contents

    with open_tensor_set(path) as tensors:
        contents = describe_contents(tensors)
    return PreparedGolden(
        path=path, samples=samples, origin={**origin, "contents": contents.to_json()}, contents=contents
    )
