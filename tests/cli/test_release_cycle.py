from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modelreg.registry.words import Precision, Verdict
from modelreg_testing.cli import Shop
from modelreg_testing.registry import add_validation


def pointer_of(shop: Shop) -> tuple[int, int]:
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    return pointer.version, pointer.generation


def history_of(shop: Shop) -> list[tuple[int, int, str, bool]]:
    rows = shop.cli("history", "lenet", "--channel", "production", "--json").document["generations"]
    return [(row["generation"], row["version"], row["kind"], row["active"]) for row in reversed(rows)]


@pytest.fixture
def shop(tmp_path: Path, database_url: str | None) -> Shop:
    return Shop(tmp_path, database_url=database_url)


@pytest.fixture
def two_versions(shop: Shop) -> Shop:
    return with_two_versions(shop)


@pytest.fixture
def file_shop(tmp_path: Path) -> Shop:
    return with_two_versions(Shop(tmp_path))


def with_two_versions(shop: Shop) -> Shop:
    shop.add_version(word=1)
    shop.add_version(word=2)
    return shop


def test_promote_rollback_and_promote_again_leave_four_generations_with_who_when_and_why(two_versions: Shop) -> None:
    shop = two_versions
    assert shop.cli("promote", "lenet:1", "--to", "production", "-m", "first").code == 0
    assert shop.cli("promote", "lenet:2", "--to", "production", "-m", "better").code == 0
    assert shop.cli("rollback", "lenet", "--channel", "production", "-m", "worse").code == 0

    refused = shop.cli("rollback", "lenet", "--channel", "production")
    assert refused.code == 1
    assert refused.err.startswith("modelreg: error: ")
    assert pointer_of(shop) == (1, 3)

    assert shop.cli("promote", "lenet:2", "--to", "production", "-m", "fixed").code == 0
    assert history_of(shop) == [
        (1, 1, "promote", False),
        (2, 2, "promote", False),
        (3, 1, "rollback", False),
        (4, 2, "promote", True),
    ]
    assert pointer_of(shop) == (2, 4)
    rows = shop.cli("history", "lenet", "--json").document["generations"]
    assert [row["message"] for row in rows] == ["fixed", "worse", "better", "first"]
    assert {row["actor"] for row in rows} == {"ada@lab"}
    assert all(row["at"].endswith("Z") for row in rows)


def test_two_rollbacks_go_two_releases_back_and_to_generation_comes_forward_again(two_versions: Shop) -> None:
    shop = two_versions
    shop.add_version(word=3)
    for version in (1, 2, 3):
        assert shop.cli("promote", f"lenet:{version}", "--to", "production").code == 0
    assert shop.cli("rollback", "lenet", "--channel", "production").code == 0
    assert shop.cli("rollback", "lenet", "--channel", "production").code == 0
    assert pointer_of(shop) == (1, 5)

    back = shop.cli("rollback", "lenet", "--to", "production", "--to-generation", "3")
    assert back.code == 0
    assert pointer_of(shop) == (3, 6)
    assert "version 1 -> version 3, generation 6 (rollback)" in back.out
    assert [row[0] for row in history_of(shop) if row[3]] == [6]


def test_the_pointer_equals_the_newest_activation_after_every_step(two_versions: Shop) -> None:
    shop = two_versions
    for words in (
        ("promote", "lenet:1", "--to", "production"),
        ("promote", "lenet:2", "--to", "production"),
        ("rollback", "lenet", "--channel", "production"),
    ):
        assert shop.cli(*words).code == 0
        generation, version, _, active = history_of(shop)[-1]
        assert active
        assert pointer_of(shop) == (version, generation)
        assert shop.cli("doctor").code == 0


def test_promoting_what_is_active_changes_nothing_and_says_so(two_versions: Shop) -> None:
    shop = two_versions
    shop.cli("promote", "lenet:1", "--to", "production")
    again = shop.cli("promote", "lenet:1", "--to", "production", "--json")
    assert again.code == 0
    assert again.document["changed"] is False
    assert again.document["generation"] == 1
    assert "serves version 1 already" in shop.cli("promote", "lenet:1", "--to", "production").out
    assert history_of(shop) == [(1, 1, "promote", True)]


def test_a_move_within_one_version_names_the_precisions(shop: Shop) -> None:
    shop.add_version(precisions=(Precision.FP32, Precision.INT8))
    for precision, said in (("fp32", "version 1, "), ("int8", "version 1, cpu fp32 -> int8, ")):
        moved = shop.cli("promote", "lenet:1", "--to", "production", "--precision", precision)
        assert f"lenet@production: {said}generation" in moved.out
    back = shop.cli("rollback", "lenet@production")
    assert "lenet@production: version 1, cpu int8 -> fp32, generation 3 (rollback)" in back.out


def test_where_no_channel_is_named_those_that_there_are_are_said(two_versions: Shop) -> None:
    for channel in ("staging", "production"):
        assert two_versions.cli("promote", "lenet:1", "--to", channel).code == 0
    for command in ("which", "rollback"):
        refused = two_versions.cli(command, "lenet")
        assert refused.code == 2
        assert "It has production, staging: write lenet@production, for example." in refused.err


def test_a_channel_can_be_the_source_of_a_promotion(two_versions: Shop) -> None:
    shop = two_versions
    shop.cli("promote", "lenet:1", "--to", "staging")
    moved = shop.cli("promote", "lenet@staging", "--to", "production", "--json")
    assert moved.code == 0
    assert moved.document["version"] == 1
    assert moved.document["previous"] is None


def test_expect_current_refuses_with_exit_4_when_somebody_was_first(two_versions: Shop) -> None:
    shop = two_versions
    assert shop.cli("promote", "lenet:1", "--to", "production", "--expect-current", 0).code == 0
    late = shop.cli("promote", "lenet:2", "--to", "production", "--expect-current", 0, "--json")
    assert late.code == 4
    assert late.document["error"]["kind"] == "activation-conflict"
    assert late.document["error"]["found_generation"] == 1
    assert shop.cli("rollback", "lenet", "--channel", "production", "--expect-current", 7).code == 4
    assert pointer_of(shop) == (1, 1)


def test_an_engine_without_validation_is_refused_with_exit_3_and_named(shop: Shop) -> None:
    shop.add_version(word=1, verdict=None)
    refused = shop.cli("promote", "lenet:1", "--to", "production", "--json")
    assert refused.code == 3
    assert refused.document["error"]["kind"] == "gate-failed"
    assert "not validated" in refused.document["error"]["missing"][0]
    assert "modelreg validate lenet:1" in refused.err
    assert shop.storage.read_pointer("lenet", "production") is None


def test_overridden_gates_stay_visible_everywhere(shop: Shop) -> None:
    shop.add_version(word=1, verdict=None)
    silent = shop.cli("promote", "lenet:1", "--to", "production", "--override-gates")
    assert silent.code == 2
    assert "--message" in silent.err

    promote = ("promote", "lenet:1", "--to", "production", "--override-gates", "-m", "the demo is at noon")
    assert "gates overridden: cpu fp32: not validated" in shop.cli(*promote, "--dry-run").out
    done = shop.cli(*promote)
    assert done.code == 0
    for words in (("show", "lenet"), ("show", "lenet:1"), ("history", "lenet"), ("which", "lenet@production")):
        shown = shop.cli(*words).out
        assert "overridden" in shown, words
    assert shop.cli("show", "lenet", "--json").document["channels"][0]["overridden"] == ["cpu fp32: not validated"]


def test_a_bare_name_or_latest_is_never_promoted(two_versions: Shop) -> None:
    shop = two_versions
    bare = shop.cli("promote", "lenet", "--to", "production")
    assert bare.code == 2
    assert "names no version" in bare.err
    assert shop.cli("promote", "lenet@latest", "--to", "production").code == 2
    assert shop.cli("promote", "lenet:1", "--to", "latest").code == 2


def test_unknown_things_are_named_with_exit_1(two_versions: Shop) -> None:
    shop = two_versions
    for words, fact in (
        (("promote", "lenett:1", "--to", "production"), "'lenett'"),
        (("promote", "lenet:9", "--to", "production"), "lenet:9"),
        (("promote", "lenet@staging", "--to", "production"), "lenet@staging"),
        (("rollback", "lenet", "--channel", "production"), "production"),
        (("show", "lenet:9"), "lenet:9"),
        (("which", "lenet@production"), "lenet@production"),
        (("history", "lenet", "--channel", "qa"), "'qa'"),
        (("list", "vgg"), "'vgg'"),
    ):
        result = shop.cli(*words)
        assert result.code == 1, words
        assert fact in result.err, words
        assert result.out == "", words
    assert "Did you mean 'lenet'?" in shop.cli("show", "lenett").err


def test_names_that_are_nearly_right_are_offered_and_unknown_models_told_apart(two_versions: Shop) -> None:
    shop = two_versions
    shop.cli("promote", "lenet:1", "--to", "production")
    for words, fact in (
        (("which", "lenet@prodction"), "Did you mean 'production'?"),
        (("rollback", "lenet@prodction"), "Did you mean 'production'?"),
        (("diff", "lenet@prodction", "lenet@production"), "Did you mean 'production'?"),
        (("which", "nothing@production"), "nothing of a model 'nothing' was ever promoted"),
        (("rollback", "lenett@production"), "Did you mean 'lenet'?"),
        (("rollback", "lenet@production"), "`modelreg history lenet@production` with --to-generation"),
        (("rollback", "lenet@production", "--to-generation", 7), "lenet@production is at 1"),
        (("rollback", "lenet@production", "--expect-current", 7), "lenet@production is at generation 1, expected 7"),
        (("promote", "lenet:2", "--to", "production", "--expect-current", 7), "`modelreg history lenet@production`"),
    ):
        assert fact in shop.cli(*words).err, words


def test_channel_is_another_word_for_to_and_a_rollback_takes_a_reference(two_versions: Shop) -> None:
    shop = two_versions
    first = shop.cli("promote", "lenet:1", "--channel", "production")
    assert first.code == 0
    assert first.err == "new channel production\n"
    second = shop.cli("promote", "lenet:2", "--to", "production")
    assert "new channel" not in second.err
    assert shop.cli("rollback", "lenet@production").code == 0
    assert shop.cli("rollback", "lenet@production", "--channel", "production", "--to-generation", 2).code == 0
    assert pointer_of(shop) == (2, 4)


def test_a_preferred_precision_that_does_not_pass_is_said_to_be_passed_over(shop: Shop) -> None:
    fp32, int8 = shop.add_version(precisions=(Precision.FP32, Precision.INT8))
    golden = shop.storage.put_bytes(b"golden set of lenet:1").digest
    with shop.database() as database, database.write() as connection:
        add_validation(connection, int8, verdict=Verdict.FAIL, golden=golden)
    done = shop.cli("promote", "lenet:1", "--to", "production")
    assert f"engine {fp32.id}" in done.out
    assert "passed over: cpu int8: validation fail" in done.out
    again = shop.cli("promote", "lenet:1", "--to", "staging", "--json").document
    assert len(again["passed_over"]) == 1
    assert "passed over" not in shop.cli("promote", "lenet:1", "--to", "qa", "--precision", "fp32").out


def test_a_list_option_that_is_repeated_adds_up(shop: Shop) -> None:
    shop.add_version(word=1)
    words = ("promote", "lenet:1", "--to", "production", "--target", "cpu", "--target", "sm_90,cpu")
    plan = shop.cli(*words, "--dry-run", "--json").document
    assert [choice["target"] for choice in plan["targets"]] == ["cpu", "sm_90"]
    assert "modelreg build lenet:1 --target sm_90" in shop.cli(*words).err


def test_dry_runs_and_drills_move_nothing(two_versions: Shop) -> None:
    shop = two_versions
    dry = shop.cli("promote", "lenet:1", "--to", "production", "--dry-run", "--json")
    assert dry.code == 0
    assert dry.document["targets"][0]["candidates"][0]["reason"] == "passes its gates"
    assert "would promote lenet:1" in shop.cli("promote", "lenet:1", "--to", "production", "--dry-run").out
    assert shop.storage.read_pointer("lenet", "production") is None

    shop.cli("promote", "lenet:1", "--to", "production")
    shop.cli("promote", "lenet:2", "--to", "production")
    assert "would bring back version 1" in shop.cli("rollback", "lenet", "--to", "production", "--dry-run").out
    drill = shop.cli("rollback", "lenet", "--channel", "production", "--drill", "--json")
    assert drill.code == 0
    assert drill.document["target"]["version"] == 1
    assert drill.document["verified_bytes"] > 0
    assert shop.cli("rollback", "lenet", "--to", "production", "--dry-run", "--json").document["dry_run"] is True
    assert "can go back from version 2 to 1" in shop.cli("rollback", "lenet", "--to", "production", "--drill").out
    assert shop.cli("rollback", "lenet", "--to", "production", "--drill", "--dry-run").code == 2
    assert pointer_of(shop) == (2, 2)


def test_a_dry_run_of_a_promotion_that_would_be_refused_says_why_with_exit_3(shop: Shop) -> None:
    shop.add_version(word=1, verdict=None)
    human = shop.cli("promote", "lenet:1", "--to", "production", "--target", "cpu,sm_90", "--dry-run")
    assert human.code == 3
    assert "not validated" in human.out
    assert "sm_90    no engine" in human.out
    machine = shop.cli("promote", "lenet:1", "--to", "production", "--target", "cpu,sm_90", "--dry-run", "--json")
    assert machine.code == 3
    assert len(machine.document["missing"]) == 2


def test_a_rollback_needs_no_database(file_shop: Shop) -> None:
    shop = file_shop
    shop.cli("promote", "lenet:1", "--to", "production")
    shop.cli("promote", "lenet:2", "--to", "production")
    away = shop.database_path.rename(shop.path / "away.db")

    back = shop.cli("rollback", "lenet", "--channel", "production")
    assert back.code == 0
    assert "rolling back from the store alone" in back.err
    assert "the next promote or rollback of it records it, or `modelreg doctor --fix`" in back.err
    assert pointer_of(shop) == (1, 3)
    shown = shop.cli("history", "lenet", "--json")
    assert [row["version"] for row in shown.document["generations"]] == [1, 2, 1]
    assert shop.cli("which", "lenet@production").code == 0
    assert shop.cli("promote", "lenet:2", "--to", "production").code == 1

    away.rename(shop.database_path)
    behind = shop.cli("history", "lenet")
    assert "the store serves generation 3, the database knows 2" in behind.err
    assert shop.cli("history", "lenet").err == behind.err  # looking records nothing
    assert shop.cli("doctor").code == 1
    assert shop.cli("doctor", "--fix").code == 0
    assert history_of(shop)[-1] == (3, 1, "rollback", True)


def test_the_next_promotion_records_a_rollback_that_the_database_was_not_told_of(file_shop: Shop) -> None:
    shop = file_shop
    for version in (1, 2):
        shop.cli("promote", f"lenet:{version}", "--to", "production")
    away = shop.database_path.rename(shop.path / "away.db")
    assert shop.cli("rollback", "lenet@production").code == 0
    away.rename(shop.database_path)
    assert shop.cli("promote", "lenet:2", "--to", "production").code == 0
    assert [row[:3] for row in history_of(shop)][-2:] == [(3, 1, "rollback"), (4, 2, "promote")]
    assert shop.cli("list").err == ""


def test_list_tells_what_the_store_serves_where_another_registry_moved_the_channel(file_shop: Shop) -> None:
    shop = file_shop
    shop.cli("promote", "lenet:1", "--to", "production")
    away = shop.database_path.rename(shop.path / "away.db")
    shutil.copy(away, shop.database_path)
    assert shop.cli("promote", "lenet:2", "--to", "production").code == 0
    assert shop.cli("promote", "lenet:2", "--to", "staging").code == 0
    shop.add_version(model="vgg")
    assert shop.cli("promote", "vgg:1", "--to", "production").code == 0
    away.replace(shop.database_path)

    models = shop.cli("list")
    assert models.out.splitlines()[-1].split() == ["lenet", "2", "2", "production", "2,", "staging", "2"]
    assert "lenet@production: the store serves generation 2, the database knows 1; run `modelreg doctor`" in models.err
    assert "lenet@staging: the store serves generation 1, the database knows 0" in models.err
    assert "vgg" not in models.out + models.err  # a model of the other registry alone
    channels = shop.cli("list", "--json").document["models"][0]["channels"]
    assert channels["production"] == {"version": 2, "generation": 2}
    versions = shop.cli("list", "lenet", "--json")
    assert [row["channels"] for row in versions.document["versions"]] == [["production", "staging"], []]
    assert versions.err == models.err


def test_list_goes_by_the_database_while_the_store_is_away(two_versions: Shop) -> None:
    shop = two_versions
    shop.cli("promote", "lenet:1", "--to", "production")
    (shop.path / "store").rename(shop.path / "away")
    result = shop.cli("list", "--json")
    assert result.code == 0
    assert result.document["models"][0]["channels"] == {"production": {"version": 1, "generation": 1}}
    assert "there is no store at" in result.err
    assert "what is active is shown as the database knows it" in result.err


def test_a_damaged_plan_is_found_by_verify_and_refused_by_promote_with_exit_6(two_versions: Shop) -> None:
    shop = two_versions
    engine = shop.add_version(word=3)[0]
    blob = next((shop.path / "store" / "blobs").rglob(engine.plan_digest))
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[0] ^= 1
    blob.write_bytes(data)

    refused = shop.cli("promote", "lenet:3", "--to", "production", "--json")
    assert refused.code == 6
    assert refused.document["error"]["kind"] == "integrity"
    assert shop.storage.read_pointer("lenet", "production") is None

    found = shop.cli("verify", "lenet:3")
    assert found.code == 6
    assert engine.plan_digest[:12] in found.out
    assert shop.cli("verify", "lenet:1").code == 0
    assert shop.cli("verify").code == 6


def test_a_damaged_release_is_not_rolled_back_to(two_versions: Shop) -> None:
    shop = two_versions
    first = shop.cli("promote", "lenet:1", "--to", "production", "--json").document["release"]
    shop.cli("promote", "lenet:2", "--to", "production")
    plan = shop.path / "store" / "releases" / first / "cpu" / "model.onnx"
    plan.chmod(0o644)
    plan.write_bytes(b"x" * plan.stat().st_size)
    refused = shop.cli("rollback", "lenet", "--channel", "production")
    assert refused.code == 6
    assert pointer_of(shop) == (2, 2)
