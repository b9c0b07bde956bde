"""Where a registry keeps its policies: which files change one, in which order. Reads no contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modelreg.registry.words import Precision

EVERY_PRECISION = "default"
"""The name of a file that holds for every precision."""

CHANNEL_MARK = "@"
"""What a channel's folder begins with; no model's name does."""


def policy_files(home: Path, precision: Precision, *, model: str | None, channel: str | None) -> Iterator[Path]:
    """Yield the files of a registry that change a policy and are there, the most general first."""
    for folder in _folders(home / "policies", model, channel):
        for name in (EVERY_PRECISION, str(precision)):
            path = folder / f"{name}.toml"
            if is_there(path):
                yield path


def has_channel_policies(home: Path, *, model: str, channel: str) -> bool:
    """Return whether a channel has a folder of its own, for all models or for this one."""
    own = f"{CHANNEL_MARK}{channel}"
    return is_there(home / "policies" / own) or is_there(home / "policies" / model / own)


def channels_with_policies(home: Path, *, model: str | None) -> set[str]:
    """Return the channels that have a folder of their own, for all models or for this one."""
    policies = home / "policies"
    return {
        path.name.removeprefix(CHANNEL_MARK)
        for folder in (policies, *([policies / model] if model is not None else []))
        for path in folder.glob(f"{CHANNEL_MARK}*")
    }


def is_there(path: Path) -> bool:
    """Return whether a policy file exists; one that cannot be read (a dangling link, no permission) does."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # reading it says why not
    return True


def _folders(policies: Path, model: str | None, channel: str | None) -> Iterator[Path]:
    yield policies
    if model is not None:
        yield policies / model
    if channel is not None:
        yield policies / f"{CHANNEL_MARK}{channel}"
        if model is not None:
            yield policies / model / f"{CHANNEL_MARK}{channel}"
