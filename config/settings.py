"""A registry's home folder and its settings, which `layers` finds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from modelreg.config.keys import HOME_VARIABLE
from modelreg.config.layers import Resolved, resolve
from modelreg.registry.errors import HomeNotFoundError, StorageError, UsageError
from modelreg.registry.words import Precision

if TYPE_CHECKING:
    from modelreg.config.channel_demands import ChannelDemands

HOME_NAME = ".modelreg"
_DEFAULTS = Path(__file__).with_name("settings.toml")
_CONFIG_NAME = "config.toml"
_CONFIG_HEADER = "# Settings of this registry. Every section is here, commented out, with its defaults."
_CHANNEL_EXAMPLE = """\
[channels.production]          # one table for each channel; none by default
targets = ["cpu"]              # promote refuses unless each of them has an engine that passes
max_verdict_age = "1d"         # and that was validated within this time: 90m, 12h, 1d, 2w
verdicts_from = "same-target"  # on a host with the engine's target; or same-gpu, anywhere"""


class ServeSettings(NamedTuple):
    """How `serve` listens, and its limits; the names are those of the keys."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    concurrency: int = 4
    max_queue: int = 128
    max_body_mib: int = 64
    request_timeout_s: float = 60.0
    read_timeout_s: float = 30.0
    shutdown_timeout_s: float = 30.0
    devices: tuple[str, ...] = ()
    instances: int = 1
    max_batch: int = 0
    max_delay_us: int = 0
    cuda_graphs: bool = False


class Settings(NamedTuple):  # and no dataclass: every command makes it, in a seventh of the time
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
    gc_keep_releases: int = 20
    gc_keep_versions: int = 3
    gc_grace_s: float = 7 * 24 * 3600.0
    demands: Mapping[str, ChannelDemands] = MappingProxyType({})
    serve: ServeSettings = ServeSettings()

    def preference_for(self, target: str) -> tuple[Precision, ...]:
        """Return the precisions wanted on `target`, most wanted first."""
        return self.preference.get(target, self.preference["default"])

    def channel_targets(self, channel: str) -> tuple[str, ...]:
        """Return the targets that `channel` requires, empty where nothing is set."""
        return self.channels.get(channel, ())

    def channel_demands(self, channel: str) -> ChannelDemands:
        """Return what `channel` asks of verdicts beside the limits, nothing where nothing is set."""
        from modelreg.config.channel_demands import ChannelDemands  # noqa: PLC0415 - start-up time

        return self.demands.get(channel, ChannelDemands())


class Home:  # and no dataclass: start-up time
    """The folder of one registry; `flags` are keys and values that go before its settings and the environment."""

    def __init__(self, path: Path, flags: tuple[tuple[str, str], ...] = ()) -> None:
        self.path = path
        self.flags = flags

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
        """Return the settings; raises ConfigError for a file or a variable that is wrong, UsageError for a flag."""
        return make_settings(self.resolved)

    @cached_property
    def resolved(self) -> Resolved:
        """Return the settings by key, with their origins; raises as `settings`."""
        return resolve(self.config_path, environment=os.environ, flags=self.flags)

    @property
    def store_url(self) -> str:
        """Return the store's URL or absolute path."""
        return _locate(self.path, self.settings.store_url)

    @property
    def database_url(self) -> str:
        """Return the database as an SQLAlchemy URL; a server's may hold a password."""
        from modelreg.registry.database_url import SQLITE_SCHEME  # noqa: PLC0415 - start-up time

        path = self.database_path
        return self.settings.database_url if path is None else f"{SQLITE_SCHEME}{path}"

    @property
    def serving_pythons(self) -> tuple[str, ...]:
        """Return the interpreters that load plans on this host; a bare name is one on the PATH."""
        named = self.settings.serve_python
        expand = os.path.expanduser  # pathlib's raises for a user that is not here
        return tuple(str(self.path / expand(each)) if "/" in each else each for each in named)

    @property
    def database_path(self) -> Path | None:
        """Return the database file, or None for a server."""
        from modelreg.registry.database_url import SQLITE_SCHEME, is_server  # noqa: PLC0415 - start-up time

        url = self.settings.database_url
        return None if is_server(url) else self.path / url.removeprefix(SQLITE_SCHEME)


def find_home(
    explicit: Path | None = None, *, start: Path | None = None, flags: tuple[tuple[str, str], ...] = ()
) -> Home:
    """
    Return the registry that is meant: `explicit`, else MODELREG_HOME, else `.modelreg` here or above.

    Raises:
        HomeNotFoundError: There is none, or what was named is not a registry.
    """
    named = explicit or (Path(value) if (value := os.environ.get(HOME_VARIABLE)) else None)
    if named is not None:
        if not (named / _CONFIG_NAME).is_file():
            raise HomeNotFoundError(f"{named} is not a registry", hint=_say_where(named))
        return Home(named.absolute(), flags)
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if (folder / HOME_NAME / _CONFIG_NAME).is_file():
            return Home(folder / HOME_NAME, flags)
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
    named = explicit or (Path(value) if (value := os.environ.get(HOME_VARIABLE)) else None)
    path = (named or Path.cwd() / HOME_NAME).absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="A registry is a folder: choose another --home.")
    return path


def create_home(path: Path, *, store_url: str | None = None, database_url: str | None = None) -> Home:
    """
    Write a new registry's folder and `config.toml`; an existing config is left as it is.

    A file with a password is closed to others.

    Raises:
        StorageError: The folder cannot be written.
    """
    from modelreg.registry.database_url import has_password  # noqa: PLC0415 - start-up time

    home = Home(path.absolute())
    try:
        home.path.mkdir(parents=True, exist_ok=True)
        if not home.config_path.exists():
            temporary = home.config_path.with_suffix(f".new-{os.getpid()}")  # several may do this at once
            temporary.touch(0o600 if database_url and has_password(database_url) else 0o666)
            temporary.write_text(_config_text(store_url, database_url), encoding="utf-8")
            temporary.replace(home.config_path)
    except OSError as error:
        raise StorageError(f"cannot create the registry {home.path}: {error.strerror}") from None
    return home


def _config_text(store_url: str | None, database_url: str | None) -> str:
    """Return a settings file with every section commented out, its defaults inside; what was named is set."""
    sections = _DEFAULTS.read_text(encoding="utf-8").strip().split("\n\n")[1:]
    sections.append(_CHANNEL_EXAMPLE)
    texts = ["\n".join(f"# {line}" for line in section.splitlines()) for section in sections]
    if store_url:
        texts[0] = f"[store]\nurl = {_toml_string(store_url)}"
    if database_url:
        texts[1] = f"[database]\nurl = {_toml_string(database_url)}"
    return "\n\n".join([_CONFIG_HEADER, *texts]) + "\n"


def _toml_string(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(character):04x}" if ord(character) < 0x20 or character in '"\\' else character for character in text
    )
    return f'"{escaped}"'


def load_settings(
    path: Path | None, *, environment: Mapping[str, str] | None = None, flags: Iterable[tuple[str, str]] = ()
) -> Settings:
    """
    Return the defaults overlaid with the file at `path`, if it exists, with variables, and with flags.

    Raises:
        ConfigError: The file has an unknown key or a value of the wrong type, or a variable has; both are named.
        UsageError: The same of a flag.
    """
    return make_settings(resolve(path, environment=environment or {}, flags=flags))


def make_settings(resolved: Resolved) -> Settings:
    """Return the settings as the program uses them."""
    values = resolved.values
    return Settings(
        store_url=values["store.url"],
        database_url=values["database.url"],
        lock_timeout_s=values["limits.lock_timeout_s"],
        build_timeout_s=values["limits.build_timeout_s"],
        preference=_named(values, "promote.preference.", ""),
        channels=_named(values, "channels.", ".targets"),
        demands=_demands(values),
        serve_python=values["serve.python"],
        allowed_plugins=values["plugins.allowed"],
        gc_keep_releases=values["gc.keep_releases"],
        gc_keep_versions=values["gc.keep_versions"],
        gc_grace_s=values["gc.grace_s"],
        serve=ServeSettings(*(values[f"serve.{name}"] for name in ServeSettings._fields)),
    )


def _demands(values: Mapping[str, Any]) -> dict[str, ChannelDemands]:
    ages = _named(values, "channels.", ".max_verdict_age")
    origins = _named(values, "channels.", ".verdicts_from")
    if not ages and not origins:
        return {}
    from modelreg.config.channel_demands import ChannelDemands, VerdictsFrom  # noqa: PLC0415 - start-up time

    return {
        channel: ChannelDemands(
            max_verdict_age=ages.get(channel), verdicts_from=origins.get(channel, VerdictsFrom.ANYWHERE)
        )
        for channel in {**ages, **origins}
    }


def _named(values: Mapping[str, Any], before: str, after: str) -> dict[str, Any]:
    return {
        name[len(before) : len(name) - len(after)]: value
        for name, value in values.items()
        if name.startswith(before) and name.endswith(after)
    }


def _locate(folder: Path, url: str) -> str:
    return url if "://" in url else str(folder / url)
