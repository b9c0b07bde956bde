"""`policy show`, `diff`, `check` and `accept`, and what an accepted or unaccepted loosening means for a promotion."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.config.policy import load_policy
from modelreg.registry import golden_sets, versions
from modelreg.registry.engines import get_engine
from modelreg.registry.references import ModelReference
from modelreg.registry.words import Precision
from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.registry import add_validation

LOOSE = '[[rules]]\nmetric = "cosine"\nlimit = 0.5\n'
STRICT = '[[rules]]\nmetric = "cosine"\nlimit = 0.999\n'
LOOSENED = "floating cosine >= 0.99 became 0.5"


@pytest.fixture
def judged(shop: Shop) -> Shop:
    shop.add_version(precisions=(Precision.INT8,))
    return shop


def write(shop: Shop, name: str, text: str) -> Path:
    path = shop.path / "policies" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def promote(shop: Shop, channel: str = "production", *words: str) -> CliResult:
    return shop.cli("promote", "lenet:1", "--to", channel, *words)


def judge_by_the_policy_of_now(shop: Shop, channel: str | None = None) -> None:
    policy = load_policy(Precision.INT8, home=shop.path, model="lenet", channel=channel)
    with shop.database() as database, database.write() as connection:
        version = versions.get_version(connection, ModelReference(model="lenet", version=1))
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        assert golden is not None
        add_validation(connection, get_engine(connection, 1), golden=golden.digest, policy=policy)


def events(shop: Shop) -> list[str]:
    import sqlalchemy as sa

    from modelreg.registry.schema import event

    with shop.database() as database, database.read() as connection:
        return list(connection.execute(sa.select(event.c.kind).order_by(event.c.sequence)).scalars())


# -- show ------------------------------------------------------------------------------------------------------
def test_show_says_which_file_each_limit_comes_from(judged: Shop) -> None:
    every = write(judged, "default.toml", '[[rules]]\nmetric = "max_relative"\nlimit = 1\n')
    channel = write(judged, "lenet/@production/int8.toml", STRICT)
    shown = judged.cli("policy", "show", "int8", "--model", "lenet", "--channel", "production")
    rows = {
        line.split()[0]: line.split()[-1] for line in shown.out.splitlines()[3:] if line.endswith((".toml", "shipped"))
    }
    assert rows["cosine"] == str(channel)
    assert rows["sqnr_db"] == "shipped"
    assert rows["max_relative"] == str(every)
    document = judged.cli("policy", "show", "int8", "--model", "lenet", "--channel", "production", "--json").document
    sources = {rule["metric"]: rule["source"] for rule in document["sources"]}
    assert sources["cosine"] == str(channel)
    assert document["channel"] == {"name": "production", "max_verdict_age": None, "verdicts_from": "anywhere"}


def test_show_tells_what_the_channel_demands_of_verdicts(judged: Shop) -> None:
    judged.home.config_path.write_text('[channels.production]\nmax_verdict_age = "12h"\nverdicts_from = "same-gpu"\n')
    shown = judged.cli("policy", "show", "int8", "--channel", "production").out
    assert "production: a verdict counts for 12h" in shown
    assert "production: a verdict counts from the same-gpu" in shown


def test_a_channel_that_nobody_knows_is_a_warning(judged: Shop) -> None:
    write(judged, "lenet/@production/int8.toml", STRICT)
    for words in (("policy", "show", "int8", "--model", "lenet"), ("validate", "lenet:1", "--dry-run")):
        told = judged.cli(*words, "--channel", "prodution")
        assert told.code == 0, told.err
        assert "nothing is known of a channel 'prodution'" in told.err
        assert "Did you mean 'production'?" in told.err
        assert "nothing is known" not in judged.cli(*words, "--channel", "production").err


# -- diff ------------------------------------------------------------------------------------------------------
def test_diff_names_what_is_tighter_looser_new_and_dropped(judged: Shop, tmp_path: Path) -> None:
    proposed = tmp_path / "int8.toml"
    proposed.write_text(
        'inherit = false\n[[rules]]\nmetric = "cosine"\nlimit = 0.999\n[[rules]]\nmetric = "sqnr_db"\nlimit = 1\n'
        '[[rules]]\nmetric = "max_abs"\nlimit = 4\n'
    )
    document = judged.cli("policy", "diff", "shipped/int8", proposed, "--json").document
    changes = {(change["metric"], change["applies_to"]): change["change"] for change in document["changes"]}
    of_outputs = [changes[metric, "floating"] for metric in ("cosine", "sqnr_db", "max_abs")]
    assert of_outputs == ["tighter", "looser", "new"]
    assert changes["sqnr_db", "slice"] == "dropped"
    told = judged.cli("policy", "diff", "shipped/int8", proposed).out
    assert any(line.split()[:1] == ["cosine"] and "tighter" in line for line in told.splitlines())


def test_diff_compares_a_channel_with_its_model_and_a_verdict_with_now(judged: Shop) -> None:
    write(judged, "lenet/@production/int8.toml", STRICT)
    (change,) = judged.cli("policy", "diff", "lenet/int8", "lenet@production/int8", "--json").document["changes"]
    assert (change["metric"], change["before"], change["after"]) == ("cosine", 0.99, 0.999)
    verdict = load_policy(Precision.INT8).digest
    write(judged, "int8.toml", STRICT)
    (change,) = judged.cli("policy", "diff", verdict[:8], "lenet/int8", "--json").document["changes"]
    assert change["change"] == "tighter"
    assert "they demand the same" in judged.cli("policy", "diff", "int8", "lenet/int8").out


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("vgg/int8", 1, "no model 'vgg'"),
        ("lenet/int9", 2, "names no policy"),
        ("lenet@/int8", 2, "no channel"),
        ("0123456789ab", 1, "no verdict was reached under"),
        ("nowhere.toml", 2, "cannot read nowhere.toml"),
    ],
)
def test_diff_refuses_what_names_no_policy(judged: Shop, name: str, code: int, said: str) -> None:
    refused = judged.cli("policy", "diff", "int8", name)
    assert refused.code == code
    assert said in refused.err


# -- check -----------------------------------------------------------------------------------------------------
def test_check_of_a_registry_without_policies_is_well(judged: Shop) -> None:
    checked = judged.cli("policy", "check")
    assert (checked.code, checked.out) == (0, "no policies of its own: the shipped ones are in force\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[rules]]\nmetrik = "cosine"\nlimit = 1\n', "unknown key 'metrik'"),
        ('[[rules]]\nmetric = "cosin"\nlimit = 1\n', "Did you mean 'cosine'?"),
        ('[[rules]]\nmetric = "cosine"\nlimit = "0.9"\n', "limit must be a finite number"),
        ("inherit = false\n", "has no rules"),
        ('inherit = false\n[[rules]]\nmetric = "overflows"\nlimit = 0\n', "without a rule that is evidence"),
    ],
)
@pytest.mark.parametrize("place", ["int8.toml", "lenet/@production/default.toml"])
def test_check_finds_what_is_wrong_with_exit_1(judged: Shop, text: str, said: str, place: str) -> None:
    path = write(judged, place, text)
    for words in ((), (path,)):
        checked = judged.cli("policy", "check", *words)
        assert checked.code == 1
        assert said in checked.out


def test_check_suggests_the_key_that_was_probably_meant(judged: Shop) -> None:
    write(judged, "int8.toml", '[[rules]]\nmetrik = "cosine"\nlimit = 1\n')
    assert "Did you mean 'metric'?" in judged.cli("policy", "check").out


def test_check_names_a_limit_looser_than_its_parent_and_whether_it_needs_a_reason(judged: Shop) -> None:
    write(judged, "int8.toml", STRICT)
    model = write(judged, "lenet/int8.toml", '[[rules]]\nmetric = "cosine"\nlimit = 0.995\n')
    found = {f["file"]: f for f in judged.cli("policy", "check", "--json").document["findings"]}
    assert found["policies/int8.toml"]["level"] == "ok"
    assert found["policies/lenet/int8.toml"]["level"] == "note"
    assert "floating cosine >= 0.999 became 0.995" in found["policies/lenet/int8.toml"]["message"]
    model.write_text(LOOSE)
    checked = judged.cli("policy", "check")
    assert checked.code == 1
    assert "modelreg policy accept int8 --model lenet --message WHY" in checked.out
    assert judged.cli("policy", "accept", "int8", "--model", "lenet", "-m", "agreed").code == 0
    assert judged.cli("policy", "check").code == 0


# -- accept ----------------------------------------------------------------------------------------------------
def test_a_loosened_policy_is_refused_by_promote_until_somebody_accepts_it(judged: Shop) -> None:
    write(judged, "int8.toml", LOOSE)
    judge_by_the_policy_of_now(judged)
    refused = promote(judged)
    assert refused.code == 3
    assert f"loosened policy that nobody gave a reason for ({LOOSENED})" in refused.err
    assert judged.cli("show", "lenet:1", "--json").document["engines"][0]["stale"] is True
    accepted = judged.cli("policy", "accept", "int8", "-m", "the product allows it")
    assert accepted.code == 0
    assert LOOSENED in accepted.out
    assert promote(judged).code == 0
    assert events(judged).count("policy.accepted") == 1
    assert judged.cli("verify", "--events").code == 0


def test_accepting_needs_a_reason_and_something_that_is_loosened(judged: Shop) -> None:
    assert "nothing to accept" in judged.cli("policy", "accept", "int8", "-m", "why").err
    write(judged, "int8.toml", LOOSE)
    refused = judged.cli("policy", "accept", "int8")
    assert (refused.code, "needs a reason" in refused.err) == (2, True)
    assert "would be accepted" in judged.cli("policy", "accept", "int8", "--dry-run").out
    assert "policy.accepted" not in events(judged)
    judged.cli("policy", "accept", "int8", "-m", "why")
    assert judged.cli("policy", "accept", "int8", "-m", "again", "--json").document["accepted_before"] is True
    assert events(judged).count("policy.accepted") == 1


def test_what_is_accepted_for_one_model_or_channel_covers_no_other_and_nothing_looser(judged: Shop) -> None:
    write(judged, "int8.toml", LOOSE)
    judge_by_the_policy_of_now(judged)
    judged.cli("policy", "accept", "int8", "--model", "lenet", "--channel", "staging", "-m", "a trial")
    assert promote(judged, "staging").code == 0
    assert promote(judged, "production").code == 3
    judged.cli("policy", "accept", "int8", "--model", "lenet", "-m", "for good")
    assert promote(judged, "production", "--dry-run").code == 0
    write(judged, "int8.toml", LOOSE.replace("0.5", "0.4"))
    judge_by_the_policy_of_now(judged)
    assert promote(judged, "production", "--dry-run").code == 3
    write(judged, "int8.toml", LOOSE.replace("0.5", "0.6"))
    judge_by_the_policy_of_now(judged)
    assert promote(judged, "production", "--dry-run").code == 0


# -- channels --------------------------------------------------------------------------------------------------
def test_a_channels_policy_binds_on_that_channel_alone_and_the_advice_names_it(judged: Shop) -> None:
    write(judged, "@production/int8.toml", STRICT)
    assert promote(judged, "staging").code == 0
    refused = promote(judged)
    assert refused.code == 3
    assert "cosine >= 0.99 was looser than >= 0.999" in refused.err
    assert "modelreg validate lenet:1 --channel production" in refused.err
    judge_by_the_policy_of_now(judged, "production")
    assert promote(judged).code == 0


def test_a_channel_refuses_a_verdict_that_is_too_old(judged: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from modelreg.config import current_policies
    from modelreg.registry.clock import utc_now

    judged.home.config_path.write_text('[channels.production]\nmax_verdict_age = "1d"\n')
    assert promote(judged, "production", "--dry-run").code == 0
    monkeypatch.setattr(current_policies, "utc_now", lambda: utc_now() + timedelta(days=3, hours=1))
    refused = promote(judged)
    assert refused.code == 3
    assert "validated 3 days ago, and the channel demands a verdict of the last 1d" in refused.err
    assert "Run `modelreg validate lenet:1`" in refused.err
    assert promote(judged, "staging").code == 0


def test_a_channel_refuses_a_verdict_from_elsewhere(judged: Shop) -> None:
    judged.home.config_path.write_text('[channels.production]\nverdicts_from = "same-target"\n')
    refused = promote(judged)  # the verdict's host does not say what it runs
    assert refused.code == 3
    assert "the channel demands a verdict from cpu" in refused.err
    done = promote(judged, "production", "--override-gates", "-m", "the demo is at noon")
    assert done.code == 0
    assert "gates overridden: cpu int8: validated on" in judged.cli("show", "lenet:1").out
