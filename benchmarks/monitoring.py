"""What counting a request costs, ours and prometheus_client's, and what a scrape does, in this process's own time."""

from __future__ import annotations

import time
import timeit

from prometheus_client import CollectorRegistry, Counter, Histogram

from modelreg.registry.words import Backend, Precision
from modelreg.runtime.monitoring.families import write_text
from modelreg.runtime.monitoring.metrics import RequestMetrics, label
from modelreg.runtime.requests import RequestOutcome, RequestRecord
from modelreg.runtime.serving import ServedEngine

COUNTERS = 7
CALLS, SCRAPES = 50_000, 50

SERVED = ServedEngine(
    model="lenet",
    channel="production",
    version=1,
    generation=1,
    release="a" * 64,
    target="cpu",
    backend=Backend.ONNXRUNTIME,
    precision=Precision.INT8,
    digest="b" * 64,
)
RECORD = RequestRecord(model="lenet", outcome=RequestOutcome.OK, served=SERVED, rows=8, total_s=0.001, compute_s=0.001)


def main() -> None:
    ours = RequestMetrics(["lenet"])
    registry = CollectorRegistry()
    labels = {"model": "lenet", **label(SERVED)}
    counters = [Counter(f"counter_{number}", "x", list(labels), registry=registry) for number in range(COUNTERS)]
    histogram = Histogram("took", "x", list(labels), registry=registry)
    children = [each.labels(**labels) for each in counters]
    observer = histogram.labels(**labels)

    def by_labels() -> None:
        for each in counters:
            each.labels(*labels.values()).inc()
        histogram.labels(*labels.values()).observe(0.001)

    def by_children() -> None:
        for child in children:
            child.inc()
        observer.observe(0.001)

    print("| counting one request | us |")
    print("|---|---|")
    for name, call in (
        ("ours", lambda: ours.observe(RECORD)),
        ("prometheus_client, labels(...)", by_labels),
        ("prometheus_client, children kept", by_children),
    ):
        took_s = min(timeit.repeat(call, number=CALLS, repeat=5, timer=time.process_time)) / CALLS
        print(f"| {name} | {took_s * 1e6:.1f} |")

    def scrape() -> None:
        write_text(ours.families())

    scrape_s = min(timeit.repeat(scrape, number=SCRAPES, repeat=5, timer=time.process_time)) / SCRAPES
    print(f"\nA scrape of one model with 4096 latencies takes {scrape_s * 1e3:.1f} ms.")


if __name__ == "__main__":
    main()
