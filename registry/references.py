"""Model references and names: one parser, one rule, for every edge of the program."""

from __future__ import annotations

import re
from typing import NamedTuple

from modelreg.registry.errors import InvalidReferenceError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}", re.ASCII)
_VERSION_PATTERN = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
_MAX_VERSION = 2**31 - 1
_FORMS = "Write NAME, NAME:VERSION, NAME@CHANNEL or NAME@sha256:DIGEST."


class ModelReference(NamedTuple):  # and no dataclass: every command makes it, in a seventh of the time
    """What a user wrote: a model and at most one of version, channel, digest (or its first digits)."""

    model: str
    version: int | None = None
    channel: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.model}:{self.version}"
        if self.channel is not None:
            return f"{self.model}@{self.channel}"
        if self.digest is not None:
            return f"{self.model}@sha256:{self.digest}"
        return self.model


def check_name(name: str, *, what: str = "model") -> str:
    """
    Return `name` unchanged if it is a legal model or channel name.

    Raises:
        InvalidReferenceError: It is not `[a-z0-9][a-z0-9._-]{0,127}`, or it is `latest`.
    """
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidReferenceError(
            f"{what} name {name[:140]!r} is not allowed",
            hint="Use lower-case letters, digits, '.', '_' and '-', starting with a letter or digit, at most 128.",
        )
    if name == "latest":
        raise InvalidReferenceError(
            f"'latest' cannot be a {what} name", hint="Name the version or the channel that is meant."
        )
    return name


def parse_version(text: str) -> int:
    """
    Return the version number that `text` spells.

    Raises:
        InvalidReferenceError: It is not a decimal integer from 1 to 2147483647.
    """
    if _VERSION_PATTERN.fullmatch(text) is None or int(text) > _MAX_VERSION:
        raise InvalidReferenceError(f"{text[:40]!r} is not a version number", hint="Versions are 1, 2, 3, …")
    return int(text)


def parse_reference(text: str) -> ModelReference:
    """
    Return the reference that `text` spells; `models:/NAME/VERSION` and `models:/NAME@CHANNEL` are accepted too.

    Raises:
        InvalidReferenceError: It cannot be read as one.
    """
    body = text
    if body.startswith("models:/"):
        body = body[len("models:/") :]
        if "/" in body:
            name, _, version = body.partition("/")
            return ModelReference(model=check_name(name), version=parse_version(version))
    if "@" in body:
        name, _, rest = body.partition("@")
        if rest.startswith("sha256:"):
            digest = rest[len("sha256:") :]
            if _DIGEST_PATTERN.fullmatch(digest) is None:
                raise InvalidReferenceError(f"{text!r} has no SHA-256: 8 to 64 hex digits of it", hint=_FORMS)
            return ModelReference(model=check_name(name), digest=digest)
        return ModelReference(model=check_name(name), channel=check_name(rest, what="channel"))
    if ":" in body:
        name, _, version = body.partition(":")
        return ModelReference(model=check_name(name), version=parse_version(version))
    return ModelReference(model=check_name(body))
