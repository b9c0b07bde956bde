from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from modelreg_testing.cli import Shop, run_cli


def promoted(shop: Shop) -> Shop:
    for word in (1, 2):
        shop.add_version(word=word)
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    return shop


def test_a_pull_says_where_the_plan_is(shop: Shop, tmp_path: Path) -> None:
    promoted(shop)
    result = shop.cli("pull", "lenet@production", "--into", "served")
    assert result.code == 0
    assert "generation 1, release" in result.out
    assert "is current now" in result.out
    plan = tmp_path / "served" / "current" / "cpu" / "model.onnx"
    assert plan.read_bytes() == b"plan lenet 1 fp32"
    assert str(plan.resolve()) in result.out
    assert "is current already" in shop.cli("pull", "lenet@production", "--into", "served").out


def test_a_pull_as_json(shop: Shop, tmp_path: Path) -> None:
    promoted(shop)
    document = shop.cli("pull", "lenet@production", "--into", "served", "--json").document
    assert document["changed"] is True
    assert document["fetched_bytes"] == len(b"plan lenet 1 fp32")
    assert Path(document["plans"]["cpu"]).read_bytes() == b"plan lenet 1 fp32"
    assert Path(document["path"]) == (tmp_path / "served" / "current").resolve()


def test_a_dry_run_of_a_pull_says_what_would_come_and_writes_nothing(shop: Shop, tmp_path: Path) -> None:
    promoted(shop)
    words = ("pull", "lenet@production", "--into", "served")
    told = shop.cli(*words, "--dry-run")
    assert told.code == 0
    assert "would become current" in told.out
    assert "17 B would be fetched, 0 B are here" in told.out
    document = shop.cli(*words, "--dry-run", "--json").document
    assert (document["dry_run"], document["changed"], document["fetched_bytes"]) == (True, True, 17)
    assert not (tmp_path / "served").exists()
    assert shop.cli(*words).code == 0
    assert "is current already" in shop.cli(*words, "--dry-run").out


def test_a_pull_needs_no_registry_but_a_store(shop: Shop, tmp_path: Path) -> None:
    promoted(shop)
    shop.database_path.unlink()
    words = ("pull", "lenet@production", "--into", tmp_path / "served")
    assert run_cli(*words).code == 1
    assert run_cli(*words, "--store", shop.path / "store").code == 0
    assert (tmp_path / "served" / "pointer.json").exists()


def test_what_cannot_be_pulled_is_said(shop: Shop) -> None:
    promoted(shop)
    for words, code, said in [
        (("pull", "lenet@production", "--into", ""), 2, "no usable name"),
        (("pull", "lenet@production", "--into", shop.path), 2, "is not empty"),
        (("pull", "lenet@production", "--into", shop.path / "store"), 2, "is not empty"),
        (("pull", "lenet", "--into", "x"), 2, "names no channel"),
        (("pull", "lenet@staging", "--into", "x"), 1, "staging"),
        (("pull", "lenet@production", "--into", "x", "--target", "sm_90"), 1, "no engine for sm_90"),
        (("pull", "lenet@production", "--into", "x", "--endpoint-url", "http://h"), 2, "belongs to --store"),
        (("pull", "lenet@production", "--into", "x", "--interval", "0"), 2, "above 0"),
        (("pull", "lenet@production", "--into", "x", "--watch", "--dry-run"), 2, "exclude each other"),
    ]:
        result = shop.cli(*words)
        assert (result.code, said in result.err) == (code, True), result.err


def told_on(file: Path) -> list[str]:
    """Return the lines that name a release."""
    return [line for line in file.read_text().splitlines() if "release" in line and not line.startswith(" ")]


def test_watching_follows_until_it_is_told_to_stop(shop: Shop, tmp_path: Path) -> None:
    promoted(shop)
    served, out, err = tmp_path / "served" / "pointer.json", tmp_path / "out", tmp_path / "err"

    def wait_for(file: Path, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in file.read_text():
            assert time.monotonic() < deadline, err.read_text()
            time.sleep(0.02)

    words = ("pull", "lenet@production", "--into", str(served.parent), "--watch", "--interval", "0.05")
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "modelreg.cli", "--home", str(shop.path), *words], stdout=stdout, stderr=stderr
        )
    try:
        wait_for(out, "generation 1, release")
        store = shop.path / "store"
        store.rename(tmp_path / "away")
        wait_for(err, "what is current here stays so")
        assert json.loads(served.read_bytes())["generation"] == 1
        (tmp_path / "away").rename(store)
        assert shop.cli("promote", "lenet:2", "--to", "production").code == 0
        wait_for(out, "generation 2, release")
        wait_for(err, "lenet@production can be read again")
        assert err.read_text().count("what is current here stays so") == 1
        assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d lenet@", line) for line in told_on(out))
        assert json.loads(served.read_bytes())["generation"] == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
