"""Who is at work: the name that every record and event carries."""

from __future__ import annotations

import getpass
import os
import socket


def current_actor() -> str:
    """Return MODELREG_ACTOR, or `user@host`; at most 255 characters on one line, what cannot be printed escaped."""
    named = os.environ.get("MODELREG_ACTOR", "").strip()
    if not named:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # no such uid in a container
            user = f"uid{os.getuid()}"
        named = f"{user}@{socket.gethostname()}"
    return "".join(_printable(character) for character in " ".join(named.split()))[:255]


def _printable(character: str) -> str:
    """Return a character, or its escape: bytes that were no UTF-8 can be neither stored nor hashed."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
