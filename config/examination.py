"""Are a registry's settings and policies understood, and is every file there ever read? What `doctor` says of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from modelreg.config.policy import load_policy
from modelreg.config.settings import Home
from modelreg.registry.errors import ModelregError
from modelreg.registry.words import Precision

_JUDGED = [precision for precision in Precision if precision is not Precision.BEST]


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
            yield from _examine_file(path)
            continue
        if models is not None and path.name not in models:
            yield _problem(
                path, f"there is no model {path.name!r}, so nothing in it is read", _close(path.name, models)
            )
        for inner in sorted(path.iterdir()):
            if inner.is_dir():
                yield _problem(inner, "is never read: a model's policies have no folders", "Remove it.")
            else:
                yield from _examine_file(inner)


def _examine_file(path: Path) -> Iterator[ConfigProblem]:
    if path.suffix.lower() != ".toml":
        return  # notes, editors' backups
    if path.name not in {f"{precision}.toml" for precision in _JUDGED}:
        yield _problem(path, "is never read: it is not named after a precision", _advise_name(path.stem))
        return
    try:
        load_policy(Precision(path.stem), override=path)
    except ModelregError as error:
        yield _problem(path, str(error), error.hint() or "Correct it; promote and validate refuse to go on without.")


def _advise_name(stem: str) -> str:
    if stem.lower() == Precision.BEST:
        return "`best` is judged by the policy of fp16."
    known = ", ".join(f"{precision}.toml" for precision in _JUDGED)
    return f"Rename it to one of {known}, or remove it."


def _close(name: str, models: Collection[str]) -> str:
    close = difflib.get_close_matches(name, list(models), n=1)
    return f"Did you mean {close[0]!r}? Rename the folder." if close else "Rename the folder, or remove it."


def _problem(path: Path, message: str, hint: str) -> ConfigProblem:
    subject = str(Path(*path.parts[-2:])) if path.parent.name == "policies" else str(Path(*path.parts[-3:]))
    return ConfigProblem(subject=subject, message=message, hint=hint)
