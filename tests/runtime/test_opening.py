"""Where the instances of a release go, as far as that is decided without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.manifest import make_manifest
from modelreg.runtime import opening
from modelreg.runtime.devices import CPU, Device
from modelreg.runtime.engines import describe_gpu_load
from modelreg.runtime.serving import InstanceState
from modelreg.runtime.suitability import Suitability
from modelreg.runtime.trying import Label, ServingOptions
from modelreg_testing.records import make_engine, make_version
from modelreg_testing.serving import SIGNATURE

DEVICES = (
    Device(name="GPU 0", target="sm_90", uuid="GPU-a", number=0, visible="3"),
    Device(name="GPU 1", target="sm_80", uuid="GPU-b", number=1, visible="5"),
)
ENGINE = make_manifest(make_version(), {"cpu": make_engine(1)}).engines[0]


def label(target: str) -> Label:
    found = Suitability(engine=ENGINE._replace(target=target), checks=(), runs_on=target, python="/opt/python")
    served: Any = None
    return Label(served=served, found=found, folder=Path("nowhere"), signature=SIGNATURE)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def find_devices(python: str) -> tuple[Device, ...]:
        found.append(python)
        return DEVICES

    monkeypatch.setattr(opening, "find_devices", find_devices)
    return found


def test_an_engine_for_the_cpu_has_one_place(asked: list[str]) -> None:
    for devices in (None, "all"):
        assert opening.find_places(label("cpu"), ServingOptions(devices=devices)) == ((CPU,), ())
    with pytest.raises(UsageError, match="runs on the CPU"):
        opening.find_places(label("cpu"), ServingOptions(devices=[0]))
    assert asked == []


def test_without_a_choice_the_first_gpu_of_the_target_is_meant_as_ever(asked: list[str]) -> None:
    (place,), unused = opening.find_places(label("sm_90"), ServingOptions(instances_per_device=2))
    assert (place.target, place.visible, place.uuid, unused) == ("sm_90", "", "", ())
    assert asked == []


def test_the_interpreter_of_the_engine_is_asked_for_devices(asked: list[str]) -> None:
    places, unused = opening.find_places(label("sm_90"), ServingOptions(devices="all"))
    assert (places, [each for each, _ in unused]) == ((DEVICES[0],), [DEVICES[1]])
    assert asked == ["/opt/python"]
    with pytest.raises(NotFoundError):
        opening.find_places(label("sm_90"), ServingOptions(devices=[1]))


def test_a_child_is_pinned_by_one_word_and_checks_the_uuid() -> None:
    load = describe_gpu_load(ENGINE, "sm_90", SIGNATURE, device=DEVICES[0], cuda_graphs=True)
    assert load.environment == {"CUDA_VISIBLE_DEVICES": "3"}
    request = load.to_request()
    assert (request["uuid"], request["cuda_graphs"]) == ("GPU-a", True)
    assert describe_gpu_load(ENGINE, "sm_90", SIGNATURE).environment == {}


def test_a_new_release_must_come_up_where_the_old_one_answers() -> None:
    class Old:
        instances = (
            InstanceState(device="GPU 0"),
            InstanceState(device="GPU 1", out_since=utc_now(), reason="died"),
            InstanceState(device="GPU 2", reason="the engine is for sm_90, and this is sm_80"),
        )

    old: Any = Old()
    assert opening.devices_in_use(old) == {"GPU 0"}
    assert opening.devices_in_use(None) is None
