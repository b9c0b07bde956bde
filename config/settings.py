"""A registry's home folder and its settings: defaults from `settings.toml`, then the home's `config.toml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from modelreg.config.channel_demands import KEYS, ChannelDemands, read_demands
from modelreg.config.toml import Table, as_finite, read_toml, require_keys
from modelreg.registry.errors import ConfigError, HomeNotFoundError, StorageError, UsageError
from modelreg.registry.references import check_name
from modelreg.registry.words import Precision

HOME_NAME = ".modelreg"
_DEFAULTS = Path(__file__).with_name("settings.toml")
_CONFIG_NAME = "config.toml"
_CONFIG_HEADER = "# Settings of this registry. Every section is here, commented out, with its defaults."
_CHANNEL_EXAMPLE = """\
[channels.production]          # one table for each channel; none by default
targets = ["cpu"]              # promote refuses unless each of them has an engine that passes
max_verdict_age = "1d"         # and that was validated within this time: 90m, 12h, 1d, 2w
verdicts_from = "same-target"  # on a host with the engine's target; or same-gpu, anywhere"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a registry is set to. `preference` maps a target (or `default`) to precisions, most wanted first;
    `channels` maps a channel to the targets it requires, `demands` to what it asks of verdicts, `allowed_plugins` holds
    digests, `serve_python` names the interpreters that load plans on this host."""

    store_url: str
    database_url: str
    lock_timeout_s: float
    build_timeout_s: float
    preference: Mapping[str, tuple[Precision, ...]]
    channels: Mapping[str, tuple[str, ...]]
    serve_python: tuple[str, ...] = ()
    allowed_plugins: tuple[str, ...] = ()
    demands: Mapping[str, ChannelDemands] = field(default_factory=dict)

    def preference_for(self, target: str) -> tuple[Precision, ...]:
        """Return the precisions wanted on `target`, most wanted first."""
        return self.preference.get(target, self.preference["default"])

    def channel_targets(self, channel: str) -> tuple[str, ...]:
        """Return the targets that `channel` requires, empty where nothing is set."""
        return self.channels.get(channel, ())

    def channel_demands(self, channel: str) -> ChannelDemands:
        """Return what `channel` asks of verdicts beside the limits, nothing where nothing is set."""
        return self.demands.get(channel, ChannelDemands())


@dataclass(frozen=True)
class Home:
    """The folder of one registry."""

    path: Path

    @property
    def config_path(self) -> Path:
        """Return the settings file."""
        return self.path / _CONFIG_NAME

    @property
    def policies_path(self) -> Path:
        """Return the folder of the registry's own policies."""
        return self.path / "policies"

    @cached_property
    def settings(self) -> Settings:
        """Return the settings; raises ConfigError for a file that is wrong."""
        return load_settings(self.config_path)

    @property
    def store_url(self) -> str:
        """Return the store's URL or absolute path."""
        return _locate(self.path, self.settings.store_url)

    @property
    def database_url(self) -> str:
        """Return the database as an SQLAlchemy URL."""
        url = self.settings.database_url
        return url if "://" in url else f"sqlite:///{_locate(self.path, url)}"

    @property
    def serving_pythons(self) -> tuple[str, ...]:
        """Return the interpreters that load plans on this host; a bare name is one on the PATH."""
        named = self.settings.serve_python
        expand = os.path.expanduser  # pathlib's raises for a user that is not here
        return tuple(str(self.path / expand(each)) if "/" in each else each for each in named)

    @property
    def database_path(self) -> Path | None:
        """Return the database file, or None for a server."""
        url = self.settings.database_url
        return None if "://" in url else Path(_locate(self.path, url))


def find_home(explicit: Path | None = None, *, start: Path | None = None) -> Home:
    """
    Return the registry that is meant: `explicit`, else MODELREG_HOME, else `.modelreg` here or above.

    Raises:
        HomeNotFoundError: There is none, or what was named is not a registry.
    """
    named = explicit or (Path(value) if (value := os.environ.get("MODELREG_HOME")) else None)
    if named is not None:
        if not (named / _CONFIG_NAME).is_file():
            raise HomeNotFoundError(f"{named} is not a registry", hint=_say_where(named))
        return Home(named.absolute())
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if (folder / HOME_NAME / _CONFIG_NAME).is_file():
            return Home(folder / HOME_NAME)
    raise HomeNotFoundError(f"no registry in {here} or above it")


def _say_where(named: Path) -> str:
    if (named / HOME_NAME / _CONFIG_NAME).is_file():
        return f"The registry in it is {named / HOME_NAME}: name that."
    if named.exists() and not named.is_dir():
        return "It is a file; name the folder of a registry."
    return f"Run: modelreg --home {named} init"


def new_home_path(explicit: Path | None = None) -> Path:
    """
    Return where `init` puts a registry: `explicit`, else MODELREG_HOME, else `.modelreg` here.

    Raises:
        UsageError: It is a file.
    """
    named = explicit or (Path(value) if (value := os.environ.get("MODELREG_HOME")) else None)
    path = (named or Path.cwd() / HOME_NAME).absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="A registry is a folder: choose another --home.")
    return path


def create_home(path: Path, *, store_url: str | None = None) -> Home:
    """
    Write a new registry's folder and `config.toml`; an existing config is left as it is.

    Raises:
        StorageError: The folder cannot be written.
    """
    home = Home(path.absolute())
    try:
        home.path.mkdir(parents=True, exist_ok=True)
        if not home.config_path.exists():
            temporary = home.config_path.with_suffix(f".new-{os.getpid()}")  # several may do this at once
            temporary.write_text(_config_text(store_url), encoding="utf-8")
            temporary.replace(home.config_path)
    except OSError as error:
        raise StorageError(f"cannot create the registry {home.path}: {error.strerror}") from None
    return home


def _config_text(store_url: str | None) -> str:
    """Return a settings file with every section commented out, its defaults inside; a store that was named is set."""
    sections = _DEFAULTS.read_text(encoding="utf-8").strip().split("\n\n")[1:]
    sections.append(_CHANNEL_EXAMPLE)
    texts = ["\n".join(f"# {line}" for line in section.splitlines()) for section in sections]
    if store_url:
        texts[0] = f"[store]\nurl = {_toml_string(store_url)}"
    return "\n\n".join([_CONFIG_HEADER, *texts]) + "\n"


def _toml_string(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(character):04x}" if ord(character) < 0x20 or character in '"\\' else character for character in text
    )
    return f'"{escaped}"'


def load_settings(path: Path | None) -> Settings:
    """
    Return the defaults overlaid with the file at `path`, if it exists.

    Raises:
        ConfigError: The file has an unknown key or a value of the wrong type; both are named.
    """
    table = read_toml(_DEFAULTS)
    where = str(path) if path else "settings"
    if path is not None and path.exists():
        _overlay(table, read_toml(path))
    require_keys(table, {"store", "database", "limits", "promote", "serve", "channels", "plugins"}, where=where)
    store = _section(table, "store", {"url"}, where)
    database = _section(table, "database", {"url"}, where)
    limits = _section(table, "limits", {"lock_timeout_s", "build_timeout_s"}, where)
    promote = _section(table, "promote", {"preference"}, where)
    serve = _section(table, "serve", {"python"}, where)
    plugins = _section(table, "plugins", {"allowed"}, where)
    channels = _channels(table.get("channels", {}), f"{where}: channels")
    return Settings(
        store_url=_text(store["url"], f"{where}: store.url"),
        database_url=_text(database["url"], f"{where}: database.url"),
        lock_timeout_s=_seconds(limits["lock_timeout_s"], f"{where}: limits.lock_timeout_s"),
        build_timeout_s=_seconds(limits["build_timeout_s"], f"{where}: limits.build_timeout_s"),
        preference=_preferences(promote["preference"], f"{where}: promote.preference"),
        channels={
            name: _names(body.get("targets", []), f"{where}: channels.{name}.targets")
            for name, body in channels.items()
        },
        demands={name: read_demands(body, where=f"{where}: channels.{name}") for name, body in channels.items()},
        serve_python=_names(serve["python"], f"{where}: serve.python"),
        allowed_plugins=_names(plugins["allowed"], f"{where}: plugins.allowed"),
    )


def _overlay(base: Table, over: Table) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _overlay(base[key], value)
        else:
            base[key] = value


def _locate(folder: Path, url: str) -> str:
    return url if "://" in url else str(folder / url)


def _section(table: Table, name: str, allowed: set[str], where: str) -> Table:
    section = table[name]
    if not isinstance(section, dict):
        raise ConfigError(f"{where}: {name} must be a table")
    require_keys(section, allowed, where=f"{where}: [{name}]")
    return section


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where} must be a text, found {value!r}")
    return value


def _seconds(value: object, where: str) -> float:
    seconds = as_finite(value)
    if seconds is None or seconds <= 0:
        raise ConfigError(f"{where} must be a number of seconds above 0, found {value!r:.40}")
    return seconds


def _preferences(value: object, where: str) -> dict[str, tuple[Precision, ...]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table of target = [precisions]")
    return {target: _precisions(names, f"{where}.{target}") for target, names in value.items()}


def _precisions(names: object, where: str) -> tuple[Precision, ...]:
    try:
        return tuple(Precision(name) for name in _names(names, where))
    except ValueError:
        raise ConfigError(
            f"{where} has an unknown precision in {names!r}", hint=f"Known: {', '.join(Precision)}."
        ) from None


def _channels(value: object, where: str) -> dict[str, Table]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must hold one table per channel")
    for channel, body in value.items():
        check_name(channel, what="channel")
        if not isinstance(body, dict):
            raise ConfigError(f"{where}.{channel} must be a table")
        require_keys(body, {"targets", *KEYS}, where=f"{where}.{channel}")
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{where} must be a list of names, found {value!r}")
    return tuple(value)
