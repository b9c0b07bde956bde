"""Are a registry's settings and policies understood, and is every file there ever read? What `doctor` says of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from modelreg.config.policy import load_policy
from modelreg.config.policy_files import CHANNEL_MARK, EVERY_PRECISION
from modelreg.config.settings import Home
from modelreg.registry.errors import ModelregError
from modelreg.registry.references import NAME_PATTERN
from modelreg.registry.words import Precision

JUDGED = [precision for precision in Precision if precision is not Precision.BEST]
"""The precisions that have a policy of their own."""

_NAMES = [EVERY_PRECISION, *JUDGED]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One file that is not understood, or that nothing ever reads."""

    subject: str
    message: str
    hint: str


def examine_settings(home: Home) -> ConfigProblem | None:
    """Return what is wrong with the settings file, or None."""
    try:
        _ = home.settings
    except ModelregError as error:
        return ConfigProblem(subject=home.config_path.name, message=str(error), hint=error.hint() or "Correct it.")
    return None


def examine_policies(home: Home, *, models: Collection[str] | None) -> list[ConfigProblem]:
    """
    Return what is wrong with the registry's policies: a gate in a file that is misnamed binds nobody.

    Args:
        home: The registry.
        models: The names of its models; None where nobody knows them.
    """
    try:
        return list(_examine_folder(home.policies_path, models=models))
    except OSError as error:
        return [_problem(Path(error.filename or home.policies_path), f"cannot be read: {error.strerror}", "")]


def _examine_folder(policies: Path, *, models: Collection[str] | None) -> Iterator[ConfigProblem]:
    if not policies.exists():
        return
    for path in sorted(policies.iterdir()):
        if not path.is_dir():
            yield from examine_file(path)
        elif path.name.startswith(CHANNEL_MARK):
            yield from _examine_inner(path)
        else:
            if models is not None and path.name not in models:
                yield _problem(
                    path, f"there is no model {path.name!r}, so nothing in it is read", _close(path.name, models)
                )
            yield from _examine_inner(path)


def _examine_inner(folder: Path) -> Iterator[ConfigProblem]:
    """Examine a model's folder, which may have its channels' in it, or a channel's, which has none."""
    is_channel = folder.name.startswith(CHANNEL_MARK)
    if is_channel and NAME_PATTERN.fullmatch(folder.name[1:]) is None:
        yield _problem(folder, "is never read: no channel can have this name", "Rename it to @CHANNEL.")
    for inner in sorted(folder.iterdir()):
        if not inner.is_dir():
            yield from examine_file(inner)
        elif not is_channel and inner.name.startswith(CHANNEL_MARK):
            yield from _examine_inner(inner)
        else:
            yield _problem(
                inner, "is never read: it is no folder of a channel, @CHANNEL", "Remove it, or name it after a channel."
            )


def examine_file(path: Path) -> Iterator[ConfigProblem]:
    """Yield what is wrong with one file of a folder of policies."""
    if path.suffix.lower() != ".toml":
        return  # notes, editors' backups
    if path.name not in {f"{name}.toml" for name in _NAMES}:
        yield _problem(path, "is never read: it is not named after a precision", _advise_name(path.stem))
        return
    precisions = JUDGED if path.stem == EVERY_PRECISION else [Precision(path.stem)]
    try:
        for precision in precisions:
            load_policy(precision, override=path)
    except ModelregError as error:
        yield _problem(path, str(error), error.hint() or "Correct it; promote and validate refuse to go on without.")


def _advise_name(stem: str) -> str:
    if stem.lower() == Precision.BEST:
        return "`best` is judged by the policy of fp16."
    known = ", ".join(f"{name}.toml" for name in _NAMES)
    return f"Rename it to one of {known}, or remove it."


def _close(name: str, models: Collection[str]) -> str:
    close = difflib.get_close_matches(name, list(models), n=1)
    return f"Did you mean {close[0]!r}? Rename the folder." if close else "Rename the folder, or remove it."


def short_path(path: Path) -> str:
    """Return the path of a policy file below its registry, or the whole path of one that lies elsewhere."""
    parts = path.parts
    if "policies" not in parts[:-1]:
        return str(path)
    last = max(index for index, part in enumerate(parts[:-1]) if part == "policies")
    return str(Path(*parts[last:]))


def _problem(path: Path, message: str, hint: str) -> ConfigProblem:
    return ConfigProblem(subject=short_path(path), message=message, hint=hint)
