"""Metrics as values, and the text that Prometheus reads. Pure.

Written here, since prometheus_client ends the name of every counter in `_total`, and Triton's do not
(docs/decisions/0055-metrics-are-counted-and-written-by-us.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from modelreg.registry.words import Word

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricKind(Word):
    """Prometheus' types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: labels, a value, and what follows the family's name (`_sum`, `_bucket`)."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(slots=True)
class Family:
    """All samples of one metric."""

    name: str
    kind: MetricKind
    help: str
    samples: list[Sample] = field(default_factory=list)

    def add(self, labels: Mapping[str, str], value: float | None, *, suffix: str = "") -> None:
        """Add a sample; nothing where nothing was measured, since 0 would be a lie."""
        if value is not None:
            self.samples.append(Sample(labels, float(value), suffix))

    def add_histogram(
        self, labels: Mapping[str, str], bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """
        Add a histogram's samples.

        Args:
            labels: Its labels.
            bounds: Upper bounds, ascending, without infinity.
            counts: How many fell into each bucket alone; one more than there are bounds.
            total: The sum of all that was observed.
        """
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            self.add({**labels, "le": write_number(bound)}, below, suffix="_bucket")
        self.add(labels, below, suffix="_count")
        self.add(labels, total, suffix="_sum")

    def add_summary(
        self, labels: Mapping[str, str], quantiles: Mapping[float, float], *, count: int, total: float
    ) -> None:
        """Add a summary's samples; quantiles of nothing are left out."""
        for quantile, value in quantiles.items():
            self.add({**labels, "quantile": write_number(quantile)}, value)
        self.add(labels, count, suffix="_count")
        self.add(labels, total, suffix="_sum")


def write_text(families: Iterable[Family]) -> bytes:
    """Return metrics in Prometheus' text format, version 0.0.4; a family without samples is left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines += [f"# HELP {family.name} {_escape(family.help)}", f"# TYPE {family.name} {family.kind}"]
        lines += [
            f"{family.name}{sample.suffix}{_write_labels(sample.labels)} {write_number(sample.value)}"
            for sample in family.samples
        ]
    return "".join(f"{line}\n" for line in lines).encode()


def write_number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)


def _write_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escape(text, quotes=True)}"' for name, text in labels.items())
    return f"{{{inside}}}"


def _escape(text: str, *, quotes: bool = False) -> str:
    text = text.encode(errors="replace").decode().replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
