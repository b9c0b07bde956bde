"""The page of a benchmark: well-formed, self-contained, and hostile names are text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from modelreg.validators.reports.bench_page import render_bench_page

_EMPTY = ("meta", "br", "hr", "img", "link")
NAMES = ("min_ms", "median_ms", "mean_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


class Outline(HTMLParser):
    """The elements of a page with their attributes, and those that were not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def row(engine: int, precision: str, batch: int, median_ms: float, *, boundaries: tuple[str, ...]) -> dict[str, Any]:
    figures = dict.fromkeys(NAMES, median_ms)
    return {
        **{"version": "resnet50:7", "engine": engine, "target": "sm_90", "precision": precision},
        **{"backend": "tensorrt", "boundary": boundaries[0], "batch": batch, "runs": 100, **figures},
        **{"boundaries": dict.fromkeys(boundaries, figures), "throughput": batch / median_ms * 1000},
        "histogram": {"low_ms": median_ms, "high_ms": median_ms * 2, "counts": [60, 39], "beyond": 1},
        "remarks": ["GPU compute is not stable: lock the clocks"] if engine == 2 else [],
    }


def document(*, batches: tuple[int, ...] = (1, 8), name: str = "fp32") -> dict[str, Any]:
    boundaries = ("gpu-compute", "enqueue", "h2d", "d2h", "latency")
    latencies = [
        row(engine, precision, batch, batch**0.5 / engine, boundaries=boundaries)
        for engine, precision in ((1, name), (2, "int8"))
        for batch in batches
    ]
    eager = [row(0, "", batch, 2.0 * batch, boundaries=("gpu-compute",)) for batch in batches]
    rivals = [{**each, "framework": "pytorch", "variant": "fp16-channels-last"} for each in eager]
    pair = {"samples": 8, "low": 0.4, "ratio": 0.5, "high": 0.6, "first_ms": 1.0, "second_ms": 2.0}
    cells = [{"batch": batch, "median_ms": 1.0, "throughput": 100.0, "to_fp32": None} for batch in batches]
    return {
        "at": "2026-11-30T12:00:00+00:00",
        "tool": {"version": "0.1.0"},
        "settings": {
            **{"host": {"name": name, "gpus": [{"name": "NVIDIA H200", "driver": "580"}]}, "warmup_ms": 200.0},
            **{"duration_s": 1.0, "iterations": 10, "streams": 2, "cuda_graph": True, "transfers": True},
            "threads": None,
        },
        "clocks": [{"engine": 1, "said": "clocks: NVIDIA H200: SM 1980 to 1980 of 1980 MHz, P0, 31 °C"}],
        "latencies": latencies,
        "pytorch": rivals,
        "matrix": [{"engine": 1, "target": "sm_90", "precision": name, "backend": "tensorrt", "cells": cells}],
        "pairs": [{"first": latencies[0], "second": rivals[0], "standing": "better", **pair}],
    }


HOSTILE = "<script>alert(1)</script>\u202e\"'&"


@pytest.mark.parametrize(
    "body", [document(), document(batches=(4,)), document(name=HOSTILE)], ids=["two", "one", "bad"]
)
def test_a_page_is_well_formed_and_needs_nothing_from_anywhere(body: dict[str, Any]) -> None:
    text = render_bench_page(body).decode()
    outline = Outline(text)
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) >= 8
    tags = {tag for tag, _ in outline.elements}
    assert not tags & {"script", "img", "link", "iframe"}
    assert not any(name.startswith("on") or name in ("src", "style") for _, each in outline.elements for name in each)
    assert "url(" not in text


def test_every_engine_and_rival_is_drawn_by_batch_and_every_boundary_listed() -> None:
    text = render_bench_page(document()).decode()
    assert text.count("<polyline ") == 2 * 3
    assert text.count("<svg ") == 2 + 1 + 6
    for word in ("PyTorch fp16-channels-last", "h2d", "latency", "SM 1980 to 1980", "lock the clocks", "better"):
        assert word in text
    assert "Latency (milliseconds) of 1 sm_90 fp32, 2 sm_90 int8, PyTorch fp16-channels-last at batch 1, 8." in text


def test_names_of_lines_that_end_together_do_not_lie_on_each_other() -> None:
    body = document()
    for each in body["latencies"]:
        each["median_ms"] = 1.0
    text = render_bench_page(body).decode()
    names = [part for part in text.split("<text ") if "sm_90" in part and 'class="start"' in part]
    heights = [float(part.split('y="')[1].split('"')[0]) for part in names[:2]]
    assert abs(heights[0] - heights[1]) >= 12
