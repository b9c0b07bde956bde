import os
from pathlib import Path

import pytest

from modelreg.config import settings as settings_module
from modelreg.config.settings import create_home, find_home, load_settings, new_home_path
from modelreg.config.toml import read_toml
from modelreg.registry.errors import ConfigError, HomeNotFoundError, InvalidReferenceError, StorageError, UsageError
from modelreg.registry.words import Precision


@pytest.fixture(autouse=True)
def _no_home_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODELREG_HOME", raising=False)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_hold_without_a_file() -> None:
    settings = load_settings(None)
    assert settings.preference_for("cpu")[0] is Precision.INT8
    assert settings.preference_for("sm_90")[-1] is Precision.FP32
    assert settings.channel_targets("production") == ()
    assert settings.lock_timeout_s == 30.0


def test_a_new_home_has_the_defaults_and_is_found_from_below(tmp_path: Path) -> None:
    home = create_home(tmp_path / ".modelreg")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_home(start=below).path == home.path
    assert home.settings == load_settings(None)
    assert home.store_url == str(home.path / "store")
    assert home.database_url == f"sqlite:///{home.path / 'registry.db'}"
    assert home.database_path == home.path / "registry.db"


def test_creating_a_home_again_keeps_its_settings(tmp_path: Path) -> None:
    home = create_home(tmp_path)
    home.config_path.write_text('[channels.production]\ntargets = ["cpu"]\n')
    assert create_home(tmp_path).settings.channel_targets("production") == ("cpu",)


def uncomment(text: str) -> str:
    return "\n".join(line.removeprefix("# ") for line in text.splitlines()[1:])


def test_a_new_config_shows_every_section_and_key_with_its_default(tmp_path: Path) -> None:
    home = create_home(tmp_path / "home")
    text = home.config_path.read_text(encoding="utf-8")
    assert all(line.startswith("#") for line in text.splitlines() if line)
    shown = load_settings(write(tmp_path / "all.toml", uncomment(text)))
    assert dict(shown.channels) == {"production": ("cpu",)}
    assert shown.channel_demands("production").to_json() == {"max_verdict_age": "1d", "verdicts_from": "same-target"}
    assert shown._replace(channels={}, demands={}) == load_settings(None)
    shipped = read_toml(Path(settings_module.__file__).with_name("settings.toml"))
    written = read_toml(tmp_path / "all.toml")
    demands = {"max_verdict_age": "1d", "verdicts_from": "same-target"}
    assert {**shipped, "channels": {"production": {"targets": ["cpu"], **demands}}} == written


@pytest.mark.parametrize("url", ["/srv/store", "s3://bucket/prefix", 'odd "quoted" \\ path', "tab\tin it"])
def test_the_store_given_at_init_is_kept(tmp_path: Path, url: str) -> None:
    assert create_home(tmp_path, store_url=url).settings.store_url == url


def test_the_environment_names_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = create_home(tmp_path / "elsewhere")
    monkeypatch.setenv("MODELREG_HOME", str(home.path))
    assert find_home().path == home.path
    assert new_home_path() == home.path
    assert find_home(create_home(tmp_path / "explicit").path).path == tmp_path / "explicit"


def test_no_home_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(HomeNotFoundError) as raised:
        find_home(start=tmp_path)
    assert "modelreg init" in raised.value.hint()
    with pytest.raises(HomeNotFoundError, match="is not a registry"):
        find_home(tmp_path)


def test_a_folder_that_holds_a_registry_is_not_mistaken_for_it(tmp_path: Path) -> None:
    create_home(tmp_path / ".modelreg")
    with pytest.raises(HomeNotFoundError) as raised:
        find_home(tmp_path)
    assert raised.value.hint() == f"The registry in it is {tmp_path / '.modelreg'}: name that."


def test_a_file_is_no_home(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(HomeNotFoundError) as raised:
        find_home(tmp_path / "file")
    assert "It is a file" in raised.value.hint()
    with pytest.raises(UsageError, match="file is a file"):
        new_home_path(tmp_path / "file")


def test_a_home_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(StorageError, match="cannot create the registry"):
        create_home(tmp_path / "file" / "home")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stroe]\n", "unknown key 'stroe'"),
        ("[limits]\nlock_timeout = 1\n", "unknown key 'lock_timeout'"),
        ("[limits]\nlock_timeout_s = 0\n", "above 0"),
        ("[limits]\nlock_timeout_s = true\n", "above 0"),
        ("[limits]\nbuild_timeout_s = inf\n", "above 0"),
        ("[limits]\nbuild_timeout_s = nan\n", "above 0"),
        ("limits = 3\n", "limits must be a table"),
        ("[store]\nurl = ''\n", r"store\.url must be a text"),
        ('[serve]\npython = "/opt/trt"\n', "serve.python must be a list of names"),
        ("[serve]\npythons = []\n", "unknown key 'pythons'"),
        ("[promote]\npreference = 1\n", "must be a table of target"),
        ('[promote.preference]\ncpu = ["fp12"]\n', "unknown precision"),
        ('[promote.preference]\ncpu = "int8"\n', "must be a list of names"),
        ("channels = 1\n", "one table per channel"),
        ("[channels]\nproduction = 1\n", "must be a table"),
        ("[channels.production]\ntarget = 1\n", "unknown key 'target'"),
        ("[channels.production]\ntargets = [1]\n", "must be a list of names"),
        ("not toml", "not valid TOML"),
        ("[limits]\nbuild_timeout_s = 1" + "0" * 400, "more than 64 bits"),
        ("[limits]\nbuild_timeout_s = 0x" + "f" * 5000, "more than 64 bits"),
        ("[limits]\nbuild_timeout_s = 1" + "0" * 5000, "not valid TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "nests tables or lists"),
        ("a = " + "{a=" * 5000 + "1" + "}" * 5000, "nests tables or lists"),
        ("[channels.production]\ntargets." + "a." * 5000 + "a = 1", "nests tables or lists"),
        ("[channels.production]\ntargets." + "a." * 20 + "a = 1", "must be a list of names"),
        ("#" * (1 << 20) + "\n", "larger than 1 MiB"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "config.toml", text)
    with pytest.raises(ConfigError, match=message) as raised:
        load_settings(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value).strip()


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")  # opening it would wait for a writer
    for path, kind in [(tmp_path / "pipe.toml", "named pipe"), (Path("/dev/zero"), "device"), (tmp_path, "folder")]:
        with pytest.raises(ConfigError, match=f"is a {kind}, not a file"):
            load_settings(path)


def test_a_channel_with_an_illegal_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidReferenceError):
        load_settings(write(tmp_path / "config.toml", "[channels.Production]\n"))


def test_a_preference_of_one_target_leaves_the_others(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path / "c.toml", '[promote.preference]\nsm_90 = ["fp16"]\n'))
    assert settings.preference_for("sm_90") == (Precision.FP16,)
    assert settings.preference_for("sm_89")[0] is Precision.INT8


def test_a_server_database_is_passed_through(tmp_path: Path) -> None:
    home = create_home(tmp_path)
    write(home.config_path, '[database]\nurl = "postgresql+psycopg://db/modelreg"\n')
    home = find_home(tmp_path)
    assert home.database_url == "postgresql+psycopg://db/modelreg"
    assert home.database_path is None


def test_what_serves_here_is_found_from_the_registrys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    home = create_home(tmp_path)
    assert home.serving_pythons == ()
    home.config_path.write_text('[serve]\npython = ["/opt/trt", "venvs/trt", "~/trt/bin/python", "python3.10"]\n')
    changed = create_home(tmp_path)
    assert changed.serving_pythons == (
        *("/opt/trt", str(tmp_path / "venvs" / "trt"), "/home/ada/trt/bin/python", "python3.10"),
    )
