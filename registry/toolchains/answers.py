"""What a probed interpreter may answer: any program may stand there, and what it says is kept for years. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from modelreg.registry.words import Backend, Json

_MAX_CHARACTERS = 200
_MAX_ITEMS = 100
_TEXTS = ("python_version", "platform", "module", "cuda")
_LISTS = {
    "targets": re.compile(r"sm_[0-9]{2,4}"),
    "providers": re.compile(r"[A-Za-z0-9_]+"),
    "lacks": re.compile(r"[A-Za-z0-9-]+"),
}
_LIST_OF = {Backend.TENSORRT: "targets", Backend.TENSORRT_RTX: "targets", Backend.ONNXRUNTIME: "providers"}


class AnswerError(ValueError):
    """An answer is not one of a probe; the message is the fact."""


def read_backends(answer: Mapping[str, Any]) -> list[Backend]:
    """
    Return the backends that an interpreter says it has.

    Raises:
        AnswerError: It does not say so, or names others than there are.
    """
    given = answer.get("backends")
    if not isinstance(given, list) or not all(each in tuple(Backend) for each in given):
        raise AnswerError(f"it answers with no list of backends: {given!r:.80}")
    return [Backend(each) for each in given]


def read_version(answer: Mapping[str, Any]) -> str:
    """
    Return the backend's version of a probe's answer.

    Raises:
        AnswerError: It has none.
    """
    version = answer.get("version")
    if not _is_text(version) or not version:
        raise AnswerError(f"it answers with no version: {version!r:.80}")
    return str(version)


def read_packaged_version(answer: Mapping[str, Any], backend: Backend) -> str:
    """Return the version of the package that a backend was installed with, or an empty string where none is known."""
    packaged = answer.get("packaged")
    version = packaged.get(backend) if isinstance(packaged, dict) else None
    return str(version) if _is_text(version) else ""


def is_same_version(packaged: str, registered: str) -> bool:
    """Return whether a package's version is the registered one as far as its numbers go: `8.6.0` is of `8.6.0.12`."""
    numbers = [re.findall(r"\d+", re.match(r"[\d.]*", version)[0]) for version in (packaged, registered)]  # type: ignore[index]
    shared = min(map(len, numbers))
    return [int(number) for number in numbers[0][:shared]] == [int(number) for number in numbers[1][:shared]]


def read_facts(answer: Mapping[str, Any], backend: Backend) -> Json:
    """
    Return what a probe's answer says beside the version: Python, platform, module, CUDA, targets or providers.

    Raises:
        AnswerError: One of them is missing, or is not what it has to be.
    """
    names = (*_TEXTS, _LIST_OF[backend])
    for name in names:
        if not _is_sound(name, answer.get(name)):
            raise AnswerError(f"it answers with no usable {name}: {answer.get(name)!r:.80}")
    return {name: answer[name] for name in names}


def read_lacks(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Return the packages that a probed interpreter says it lacks.

    Raises:
        AnswerError: It does not list packages.
    """
    given = answer.get("lacks", [])
    if not _is_sound("lacks", given):
        raise AnswerError(f"it answers with no usable lacks: {given!r:.80}")
    return tuple(given)


def keep_sound(facts: object) -> Json:
    """Return the facts of a kept answer without those of another kind: older rows were not checked."""
    known = facts if isinstance(facts, dict) else {}
    return {name: value for name, value in known.items() if _is_sound(name, value)}


def _is_sound(name: str, value: object) -> bool:
    pattern = _LISTS.get(name)
    if pattern is None:
        return name not in _TEXTS or _is_text(value)
    is_short_list = isinstance(value, list) and len(value) <= _MAX_ITEMS
    return is_short_list and all(_is_text(each) and pattern.fullmatch(each) for each in value)  # type: ignore[attr-defined]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_CHARACTERS and value.isprintable()
