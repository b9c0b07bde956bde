"""`top` against a real endpoint, in words, as JSON, and live on a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from modelreg.cli import top_live
from modelreg.cli import top_view as view
from modelreg.cli.context import Invocation
from modelreg.cli.top import look_at_host
from modelreg.cli.top_live import Downtimes
from modelreg.registry.clock import utc_now
from modelreg.runtime.leases import LeaseKeeper
from modelreg.runtime.monitoring.devices import DeviceReader
from modelreg.runtime.monitoring.exporter import Exporter
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg.runtime.monitoring.remote import Answered, UnreachableError
from modelreg.runtime.serving import InstanceState
from modelreg_testing.cli import Shop, run_cli
from modelreg_testing.monitoring import LIMITS, Nvml, h200, served_adder

X: dict[str, NDArray[Any]] = {"x": np.zeros((2, 3), np.float32)}
DOWN = "http://127.0.0.1:1/v2/modelreg/monitor cannot be asked: Connection refused"


@pytest.fixture
def monitor(in_memory: Path) -> Iterator[Monitor]:
    gpu = h200(Temperature=41, CurrentClocksEventReasons=0x1)
    with (
        served_adder(in_memory) as (model, _),
        Monitor({"lenet": model}, limits=LIMITS, devices=DeviceReader(library=Nvml([gpu])), period_s=0.05) as made,
    ):
        for _ in range(5):
            made.wrap("lenet").infer(X)
        yield made


@pytest.fixture
def served(monitor: Monitor) -> Iterator[Exporter]:
    with monitor.serve_http(0) as made:
        yield made


def test_one_look_shows_models_and_gpus(served: Exporter) -> None:
    done = run_cli("top", served.url)
    assert (done.code, done.err) == (0, "")
    header, lenet, _, gpus, gpu = done.out.splitlines()
    assert header.split() == [
        *("MODEL", "PROCESS", "GEN", "VERSION", "PRECISION", "REQ/S", "ERRORS", "P50", "MS", "P99", "MS"),
        *("QUEUE", "BATCH", "INST", "HEALTH"),
    ]
    cells = re.split(r" {2,}", lenet)
    assert cells[:5] == ["lenet", f"{socket.gethostname()}:{os.getpid()}", "1", "1", "fp32"]
    assert cells[-3:] == ["2", "1", "HEALTHY"]
    assert gpus.split()[:3] == ["GPU", "NAME", "UTIL"]
    expected = ["0", "NVIDIA H200", "37 %", "14.0 GiB of 140.4 GiB", "41 C", "251 W", "1980", "3201", "gpu_idle"]
    assert re.split(r" {2,}", gpu) == expected


@pytest.mark.slow
def test_json_is_one_document_with_that_of_each_process(served: Exporter) -> None:
    done = run_cli("top", served.url, f"{served.url}/metrics", "127.0.0.1:1", "--json")
    assert done.code == 1
    body = done.document
    assert body["health"] == "HEALTHY"
    assert [each["error"] for each in body["processes"]] == [None, None, DOWN]
    assert body["processes"][0]["document"]["models"]["lenet"]["requests"]["answered"] == 5


def test_a_process_that_is_down_is_one_line_and_exit_1(served: Exporter) -> None:
    done = run_cli("top", "127.0.0.1:1", "--once")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"modelreg: warning: {DOWN}. Is it running")
    assert len(done.err.splitlines()) == 1
    both = run_cli("top", "127.0.0.1:1", served.url)
    assert both.code == 1
    assert "lenet" in both.out  # what answers is shown all the same


def test_check_exits_3_with_the_reasons_unless_all_is_healthy(monitor: Monitor, served: Exporter) -> None:
    assert run_cli("top", served.url, "--check").code == 0
    monitor._models["lenet"].close()  # type: ignore[attr-defined]
    monitor.look()
    done = run_cli("top", served.url, "--check")
    assert done.code == 3
    reason = done.out.splitlines()[-1]
    assert reason.startswith("CRITICAL lenet: no engine answers at this moment (1, limit 0.5, since 2")
    assert "Its alarms say why" in reason
    assert run_cli("top", served.url).code == 0


def test_wrong_usage_is_one_line() -> None:
    assert run_cli("top", "--check").code == 2
    assert run_cli("top", "ftp://x").code == 2
    assert run_cli("top", "x:1", "--interval", "0").code == 2


def test_without_a_url_it_is_this_host_and_its_leases(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.add_version()
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    none = shop.cli("top", "--once")
    assert none.code == 0
    assert "host: CPU" in none.out
    assert "no lease of the store is this host's" in none.err
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    with LeaseKeeper(lambda: shop.storage, instance="api-7", warn=print) as keeper:
        keeper.hold(pointer)
        done = shop.cli("top", "--once")
        body = shop.cli("top", "--json").document
    assert re.search(r"lenet@production +1 +1 +api-7 +2", done.out)
    assert [lease["generation"] for lease in body["leases"]] == [1]
    assert body["load"]["memory_total_bytes"] > 0
    assert body["devices"]["gpus"] or body["devices"]["problem"]


def test_without_a_registry_the_devices_are_shown_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MODELREG_HOME", "MODELREG_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    done = run_cli("top")
    assert done.code == 0
    assert "host: CPU" in done.out
    assert "no registry here" in done.err
    assert run_cli("top", home=tmp_path / "none").code == 1  # one that is named must be there


class Terminal:
    """A command on a terminal of its own, and what it has drawn."""

    def __init__(self, *words: str) -> None:
        self._end, other = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "modelreg.cli", *words], stdin=other, stdout=other, stderr=other, env=environment
        )
        os.close(other)
        self.drawn = ""

    def read_until(self, text: str, *, timeout_s: float = 60.0) -> None:
        until_s = time.monotonic() + timeout_s
        while text not in self.drawn:
            assert time.monotonic() < until_s, self.drawn
            if select.select([self._end], [], [], 0.1)[0]:
                self.drawn += os.read(self._end, 1 << 16).decode(errors="replace")

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        until_s = time.monotonic() + 60
        while self.process.poll() is None:  # it must be able to write its last words
            assert time.monotonic() < until_s
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.drawn += os.read(self._end, 1 << 16).decode(errors="replace")
                except OSError:
                    break
        code = self.process.wait(60)
        os.close(self._end)
        return code


def test_live_it_draws_goes_on_when_a_process_is_down_and_ends_with_ctrl_c(monitor: Monitor) -> None:
    made = monitor.serve_http(0)
    terminal = Terminal("top", made.url, "--interval", "0.2")
    try:
        terminal.read_until("HEALTHY")
        terminal.read_until("NVIDIA H200")
        made.close()
        terminal.read_until("down since 2")
    finally:
        code = terminal.end()
    assert code == 0
    assert "Traceback" not in terminal.drawn
    assert terminal.drawn.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))  # the screen from before is back


def test_live_without_a_url_this_host_is_drawn() -> None:
    terminal = Terminal("top", "--interval", "0.1")
    try:
        terminal.read_until("host: CPU")
    finally:
        assert terminal.end() == 0


def test_a_process_is_down_since_it_was_first_seen_so() -> None:
    now, downtimes = utc_now(), Downtimes()
    down = Answered(url="http://x", document=None, error=UnreachableError("x is away"))
    up = Answered(url="http://x", document={})
    (first,) = downtimes.tell([down], now=now)
    assert downtimes.tell([down], now=now + timedelta(hours=1)) == [first]
    assert downtimes.tell([up], now=now) == []
    assert downtimes.tell([down], now=now + timedelta(hours=2)) != [first]


@pytest.mark.parametrize(
    ("served", "stored", "text"),
    [(3, 3, "3"), (3, 4, "3 of 4"), (None, 4, "- of 4"), (None, None, "-"), (3, None, "3")],
)
def test_a_generation_says_how_far_the_store_is(served: object, stored: object, text: str) -> None:
    assert view.say_generation(served, stored) == text


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        (None, "-"),
        ([], "1"),
        ([InstanceState(device="cpu")] * 3, "3"),
        ([InstanceState(device="GPU 0"), InstanceState(device="GPU 1", out_since=utc_now(), reason="died")], "1 of 2"),
        ([InstanceState(device="GPU 0"), InstanceState(device="GPU 1", reason="it is sm_80")], "1"),
    ],
)
def test_instances_are_those_that_answer_of_those_that_there_are(
    instances: list[InstanceState] | None, text: str
) -> None:
    found = None if instances is None else [each.to_json() for each in instances]
    assert view.say_instances(found) == text
    assert instances is None or text.endswith(str(sum(each.is_used for each in instances) or 1))


def test_what_is_not_known_is_a_dash_and_text_from_elsewhere_cannot_draw() -> None:
    body = Monitor({}, limits=LIMITS, devices=DeviceReader(library=Nvml([{"UUID": "1", "Name": "x"}]))).document()
    body = json.loads(json.dumps(body))
    body["models"] = {"m": {"requests": {}}}
    body["health"]["findings"] = [{"state": "WARNING", "subject": "\x1b[2Jm", "message": "a\nb", "since": "yesterday"}]
    (row,) = view.model_rows([body])
    assert row[2:] == ("-",) * 11
    assert view.gpu_rows([body]) == [("0", "x", *["-"] * 7)]
    (line,) = view.finding_lines([body])
    assert "\x1b" not in line
    assert "\n" not in line
    assert "since - UTC" in line


def drawn(seen: Any, downtimes: Downtimes | None = None) -> str:
    """Return what Rich draws of one look, as text."""
    console = Console(file=io.StringIO(), width=200, no_color=True)
    console.print(top_live.draw(seen, downtimes or Downtimes()))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_live_look_has_models_gpus_findings_and_what_is_down(monitor: Monitor) -> None:
    monitor._models["lenet"].close()  # type: ignore[attr-defined]
    monitor.look()
    text = drawn(
        [
            Answered(url="a", document=json.loads(json.dumps(monitor.document()))),
            Answered(url="b", document=None, error=UnreachableError("b is away")),
        ]
    )
    for part in ("lenet", "NVIDIA H200", "host: CPU", "CRITICAL lenet: no engine answers", "down since 2", "b is away"):
        assert part in text, part


def test_a_live_look_at_this_host_has_its_leases_or_why_there_are_none(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    invocation = Invocation()
    invocation.home = shop.path
    assert "no lease" not in drawn(look_at_host(invocation))
    seen = replace(look_at_host(invocation), store_problem="the store is away")
    assert "the store is away" in drawn(seen)
    shop.path.joinpath("store", "FORMAT").unlink()
    assert look_at_host(invocation).store_problem


def test_watching_looks_again_and_again_until_ctrl_c() -> None:
    looks: list[str] = []

    def wait(seconds: float) -> None:
        looks.append(f"waited {seconds}")
        if len(looks) == 6:
            raise KeyboardInterrupt

    def look() -> list[Answered]:
        looks.append("looked")
        return []

    top_live.watch(look, interval_s=0.7, no_color=True, wait=wait)
    assert looks == ["looked", "waited 0.7"] * 3
