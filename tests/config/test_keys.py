import pytest

from modelreg.config.keys import KEYS, Key, find_key, find_named, unknown_variables, variable_of
from modelreg.config.unknown import describe_unknown


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("store.url", "MODELREG_STORE_URL"),
        ("limits.lock_timeout_s", "MODELREG_LIMITS_LOCK_TIMEOUT_S"),
        ("promote.preference.sm_90", "MODELREG_PROMOTE_PREFERENCE_SM_90"),
        ("channels.eu-west.1.targets", "MODELREG_CHANNELS_EU_WEST_1_TARGETS"),
    ],
)
def test_a_variable_is_the_key_in_capitals(name: str, variable: str) -> None:
    assert variable_of(name) == variable
    assert find_named(variable, [name]) == name


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_is_found_by_its_name_and_by_its_variable(key: Key) -> None:
    name = ".".join("sm_90" if part.isupper() else part for part in key.parts)
    assert find_key(name) is key
    assert find_named(variable_of(name), ()) == name
    assert key.summary


def test_a_name_with_dots_and_dashes_is_known_from_the_file_since_a_variable_cannot_spell_it() -> None:
    assert find_named("MODELREG_CHANNELS_EU_WEST_TARGETS", ["channels.eu-west.targets"]) == "channels.eu-west.targets"
    assert find_named("MODELREG_CHANNELS_EU_WEST_TARGETS", []) == "channels.eu_west.targets"
    key = find_key("channels.eu.west-1.targets")
    assert key is not None
    assert key.name == "channels.CHANNEL.targets"


@pytest.mark.parametrize("name", ["", "store", "store.urls", "store.url.x", "channels.targets", "promote.preference"])
def test_what_is_no_key_is_none(name: str) -> None:
    assert find_key(name) is None


def test_variables_that_look_like_ours_and_set_nothing_are_named_with_what_may_be_meant() -> None:
    environment = {
        "MODELREG_STORE_URL": "x",
        "MODELREG_CHANNELS_X_TARGETS": "cpu",
        "MODELREG_HOME": "x",
        "MODELREG_ACTOR": "x",
        "MODELREG_TEST_S3_ENDPOINT": "x",
        "MODELREG_GPU_TOOLCHAIN": "x",
        "PATH": "x",
        "MODELREG_LIMITS_LOCK_TIMEOUT": "5",
        "MODELREG_QQQ": "",
    }
    assert unknown_variables(environment) == ["MODELREG_LIMITS_LOCK_TIMEOUT", "MODELREG_QQQ"]
    first, second = describe_unknown(environment)
    assert first == "MODELREG_LIMITS_LOCK_TIMEOUT sets nothing: did you mean MODELREG_LIMITS_LOCK_TIMEOUT_S?"
    assert second == "MODELREG_QQQ sets nothing: `modelreg config show -v` lists what does"
    assert describe_unknown({"PATH": "x"}) == []
