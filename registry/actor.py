"""Who is at work: the name that every record and event carries."""

from __future__ import annotations

import getpass
import os
import socket


def current_actor() -> str:
    """Return MODELREG_ACTOR, or `user@host`; at most 255 characters on one line."""
    named = os.environ.get("MODELREG_ACTOR", "").strip()
    if not named:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # no such uid in a container
            user = f"uid{os.getuid()}"
        named = f"{user}@{socket.gethostname()}"
    return " ".join(named.split())[:255]
