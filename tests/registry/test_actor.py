from __future__ import annotations

import pytest

from modelreg.registry.actor import current_actor
from modelreg.registry.digests import canonical_json


@pytest.mark.parametrize(
    ("named", "actor"),
    [
        ("ada@lab", "ada@lab"),
        (" ada \n of\tthe lab ", "ada of the lab"),
        ("Zo\u00eb", "Zo\u00eb"),
        ("ad\udcffa", "ad\\udcffa"),
        ("ada\x1b[31m", "ada\\x1b[31m"),
        ("\udcff" * 300, ("\\udcff" * 300)[:255]),
    ],
)
def test_an_actor_is_one_line_that_can_be_stored(monkeypatch: pytest.MonkeyPatch, named: str, actor: str) -> None:
    monkeypatch.setenv("MODELREG_ACTOR", named)
    assert current_actor() == actor
    assert canonical_json(current_actor())


def test_a_user_whose_name_is_no_utf8_has_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELREG_ACTOR", " ")
    monkeypatch.setenv("LOGNAME", "ad\udcffa")
    assert current_actor().startswith("ad\\udcffa@")
