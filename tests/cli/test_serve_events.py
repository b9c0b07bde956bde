"""What `serve` prints for people and for programs, and that who does not read it holds up nothing."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from modelreg.cli.render import OutputError
from modelreg.cli.serve_events import ServeEvents, log_to
from modelreg.registry.clock import utc_now
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.requests import RequestOutcome, RequestRecord
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.models import ServedModel, serve_models
from modelreg.runtime.serving import ActiveState, Alarm, AlarmKind, ServedEngine
from modelreg_testing.cli import run_cli

SERVED = ServedEngine(
    model="lenet",
    channel="production",
    version=3,
    generation=7,
    release="ab" * 32,
    target="cpu",
    backend=Backend.ONNXRUNTIME,
    precision=Precision.INT8,
    digest="cd" * 32,
)
STATE = ActiveState(served=SERVED, store_generation=7, alarms=(), in_flight=0, swaps=1, last_swap=None, retired=0)


class Still:
    """A model of which only the state is asked."""

    is_batched = False

    def state(self) -> ActiveState:
        return STATE


def model() -> ServedModel:
    still: Any = Still()
    return serve_models({"lenet@production": still}, Limits())[0]


def tell_all(events: ServeEvents) -> None:
    events.listening("http://127.0.0.1:8000", [model()])
    events.swapped(model(), SERVED)
    alarm = Alarm(kind=AlarmKind.LOAD, message="it does not load", hint="Roll back.", generation=8, at=utc_now())
    events.alarm("lenet@production")(alarm)
    events.observe(RequestRecord(model="lenet", outcome=RequestOutcome.EXPIRED, queue_s=0.25, total_s=0.5, bytes_in=9))
    with log_to(events):
        logging.getLogger("modelreg.runtime").warning("the lease of %s is late", "lenet")
        logging.getLogger("modelreg.runtime").error("load: it does not load")  # the alarm said so
        try:
            raise RuntimeError("odd")
        except RuntimeError:
            logging.getLogger("modelreg.runtime").exception("a request failed")
    events.stopping(1)
    events.abandoned("an engine hangs")
    events.stopped()


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    tell_all(ServeEvents(as_json=False))
    found = capsys.readouterr()
    described = "lenet@production version 3, generation 7, cpu int8, release abababababab"
    first, second, third, fourth = found.out.splitlines()
    assert first == f"lenet: {described}"
    assert second == "listening on http://127.0.0.1:8000"
    assert third.endswith(f" lenet: {described}")
    assert " lenet outcome=expired generation=- rows=0 queue_ms=250.0 " in fourth
    said = found.err.splitlines()
    assert [line.partition(" UTC ")[0].startswith("modelreg: warning:") for line in said[:3]] == [True] * 3
    assert said[0].endswith("lenet@production: load: it does not load (Roll back.)")
    assert said[1].endswith("the lease of lenet is late")
    assert said[2].endswith("a request failed: RuntimeError: odd")
    assert said[3:] == [
        "stopping, 1 request under way",
        "modelreg: warning: an engine hangs; leaving all the same",
        "stopped",
    ]


def test_a_line_of_json_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    tell_all(ServeEvents(as_json=True))
    found = capsys.readouterr()
    events = [json.loads(line) for line in found.out.splitlines()]
    assert found.err == ""
    assert [each["event"] for each in events] == [
        *("listening", "swapped", "alarm", "request", "warning", "warning", "stopping", "abandoned", "stopped"),
    ]
    assert {each["schema"] for each in events} == {1}
    assert events[0]["models"] == [{"name": "lenet", **SERVED.to_json()}]
    assert events[2]["alarm"]["kind"] == "load"


def test_what_cannot_be_printed_is_lost_and_the_next_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = ServeEvents(as_json=False)

    def fail(_text: str) -> None:
        raise OutputError("the disk is full")

    events._print("x", "lost", fail)
    events.stopped()
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("library", ["uvicorn", "starlette"])
def test_without_the_extra_one_line_says_what_to_install(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    done = run_cli("serve", "lenet@production", "--store", "/nowhere")
    assert done.code == 1
    assert done.err.splitlines()[0] == f"modelreg: error: {library} is not installed"
    assert "pip install 'modelreg[serve]'" in done.err
