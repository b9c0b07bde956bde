"""Are a registry's settings and policies understood, and is every file there ever read? What `doctor` says of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from pathlib import Path

from modelreg.config.policy import load_policy
from modelreg.config.settings import Home
from modelreg.registry.doctor import Finding, Level
from modelreg.registry.errors import ModelregError
from modelreg.registry.words import Precision

_JUDGED = [precision for precision in Precision if precision is not Precision.BEST]


def examine_settings(home: Home) -> Finding:
    """Return whether the settings file is understood."""
    try:
        _ = home.settings
    except ModelregError as error:
        hint = error.hint() or f"Correct {home.config_path}; nothing else was examined."
        return Finding(level=Level.PROBLEM, check="settings", subject="config.toml", message=str(error), hint=hint)
    return Finding(level=Level.OK, check="settings", subject="config.toml", message="understood")


def examine_policies(home: Home, *, models: Collection[str] | None) -> list[Finding]:
    """
    Return what is wrong with the registry's policies, or that nothing is: a gate that is misspelled binds nobody.

    Args:
        home: The registry.
        models: The names of its models; None where nobody knows them.
    """
    try:
        problems = list(_examine_folder(home.policies_path, models=models))
    except OSError as error:
        problems = [_problem(Path(error.filename or home.policies_path), f"cannot be read: {error.strerror}", "")]
    return problems or [Finding(level=Level.OK, check="policies", subject="registry", message="every file is in force")]


def _examine_folder(policies: Path, *, models: Collection[str] | None) -> Iterator[Finding]:
    if not policies.exists():
        return
    for path in sorted(policies.iterdir()):
        if not path.is_dir():
            yield from _examine_file(path)
            continue
        if models is not None and path.name not in models:
            yield _problem(path, f"there is no model {path.name!r}, so nothing in it is read", _close(path.name, models))
        for inner in sorted(path.iterdir()):
            if inner.is_dir():
                yield _problem(inner, "is never read: a model's policies have no folders", "Remove it.")
            else:
                yield from _examine_file(inner)


def _examine_file(path: Path) -> Iterator[Finding]:
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


def _problem(path: Path, message: str, hint: str) -> Finding:
    subject = str(Path(*path.parts[-2:])) if path.parent.name == "policies" else str(Path(*path.parts[-3:]))
    return Finding(level=Level.PROBLEM, check="policies", subject=subject, message=message, hint=hint)
