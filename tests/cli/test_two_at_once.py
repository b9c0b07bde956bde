from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from modelreg_testing.cli import Shop


@pytest.fixture
def shop(tmp_path: Path, database_url: str | None) -> Shop:
    return Shop(tmp_path, database_url=database_url)


def start(shop: Shop, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "modelreg.cli", "--home", str(shop.path), *words, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_processes_that_expect_the_same_generation_one_wins_and_the_others_are_told(shop: Shop) -> None:
    for word in range(4):
        shop.add_version(word=word)
    children = [
        start(shop, "promote", f"lenet:{number}", "--to", "production", "--expect-current", "0")
        for number in (1, 2, 3, 4)
    ]
    answers = [(*child.communicate(timeout=60), child.returncode) for child in children]
    codes = sorted(code for _, _, code in answers)
    assert codes == [0, 4, 4, 4]
    winner = json.loads(next(out for out, _, code in answers if code == 0))
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    assert (pointer.version, pointer.generation, pointer.txn) == (winner["version"], 1, winner["txn"])
    for out, err, code in answers:
        if code == 4:
            assert json.loads(out)["error"]["kind"] in ("activation-conflict", "busy")
            assert "Traceback" not in err
    assert shop.cli("doctor").code == 0


@pytest.mark.slow
def test_processes_that_promote_at_once_lose_nothing(shop: Shop) -> None:
    for word in range(4):
        shop.add_version(word=word)
    children = [start(shop, "promote", f"lenet:{number}", "--to", "production") for number in (1, 2, 3, 4)]
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    rows = shop.cli("history", "lenet", "--json").document["generations"]
    assert [row["generation"] for row in rows] == [4, 3, 2, 1]
    assert sorted(row["version"] for row in rows) == [1, 2, 3, 4]
    assert shop.cli("verify", "--events").code == 0
