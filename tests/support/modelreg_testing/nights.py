"""Earlier nights for a registry: copies of a real one with other measurements."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from modelreg_testing.cli import Shop
from modelreg_testing.once import made_once
from modelreg_testing.released_lenet import copy_of_released_lenet


def plant_nights(nights: Path, values: Mapping[str, Sequence[float]]) -> None:
    """
    Put a night before the one that `latest` points to for each value of every measurement, the oldest first.

    Args:
        nights: The folder of nights, with one real night.
        values: By measurement; all of one length.
    """
    newest = nights / "latest"
    real = json.loads((newest / "nightly.json").read_bytes())
    count = len(next(iter(values.values())))
    tonight = datetime.strptime(newest.resolve().name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    for number in range(count):
        at = tonight - timedelta(days=count - number)
        place = nights / at.strftime("%Y%m%dT%H%M%SZ")
        shutil.copytree(newest.resolve(), place)
        for channel in real["channels"]:
            for engine in channel["engines"]:
                for name, series in values.items():
                    engine["measured"][name]["value"] = series[number]
        (place / "nightly.json").write_text(json.dumps(real))


def copy_of_lenet_after_a_night(factory: pytest.TempPathFactory, home: Path) -> Path:
    """Copy the released LeNet (see `released_lenet`) after one good night to `home`, and return that."""

    def make(folder: Path) -> None:
        copy_of_released_lenet(factory, folder / "home")
        done = Shop.at(folder / "home").cli("nightly")
        assert done.code == 0, done.err

    shutil.copytree(made_once(factory, "lenet-after-a-night", make) / "home", home, symlinks=True)
    return home
