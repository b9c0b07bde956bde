"""Part 6, the large half: one registry with 100,000 versions, where every number must still be right."""

from __future__ import annotations

import time
from dataclasses import replace

from modelreg.config.settings import Home
from modelreg_testing.campaign.checker import check_database, check_objects, check_settled, require
from modelreg_testing.campaign.homes import CHANNEL, Template, must
from modelreg_testing.campaign.results import Tally
from modelreg_testing.cli import Shop
from modelreg_testing.registry import add_version

_BATCH = 5_000


def many_versions(template: Template, *, versions: int) -> Tally:
    """Fill one model with versions, then work at its end."""
    tally = Tally("disks", f"{versions:,} versions in one registry", template.store)
    started = time.monotonic()
    with template.copy("many") as place:
        shop = Shop.__new__(Shop)
        shop.path, shop.home = place.home, Home(place.home)
        for first in range(0, versions, _BATCH):
            with shop.database() as database, database.write() as connection:
                for word in range(first, min(first + _BATCH, versions)):
                    add_version(connection, model="many", word=word)
        (engine,) = shop.add_version(model="many", word="the last")
        require(engine.version == versions + 1, "I4", f"the next version is {engine.version}")
        for words in (
            ("list",),
            ("list", "many"),
            ("show", f"many:{versions + 1}"),
            ("promote", f"many:{versions + 1}", "--to", CHANNEL),
            ("which", f"many@{CHANNEL}"),
            ("history", "many"),
        ):
            began = time.monotonic()
            must(place, *words)
            tally.count("as it should be")
            tally.notes.append(f"{words[0]} {time.monotonic() - began:.2f} s")
        tables = check_database(place.database)
        check_settled(check_objects(place.objects()), replace(tables, blobs=frozenset()))  # their sources are made up
    tally.seconds = time.monotonic() - started
    return tally
