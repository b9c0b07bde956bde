"""The address of a database as a user writes it: what kind it is, and how it is shown without its secrets. Pure."""

from __future__ import annotations

import re

from modelreg.registry.errors import UsageError

SQLITE_SCHEME = "sqlite:///"
SERVER_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
FORMS = "Write a file name, or postgresql://USER@HOST/DATABASE; a password is best kept in ~/.pgpass or PGPASSWORD."
_QUOTE_HINT = "In a user, a password or a database write %40 for @, %2F for /, %3A for : and %23 for #."

# Not compiled here: every command reads this module, and few need the patterns.
_HIDDEN = r"(?i)([?&](?:password|sslpassword)=)[^&]*"
_AUTHORITY = r"(?s)([a-z0-9+]+://)([^/?#]*)(.*)"
_KEYWORDS = r"\b(?:password|host|dbname)\s*="


def is_server(url: str) -> bool:
    """Return whether `url` names a server, and not a file."""
    return "://" in url and not url.startswith("sqlite:")


def mask_secrets(url: str) -> str:
    """
    Return `url` with `***` for its password, also where it is written so wrongly that nobody can say where that ends.

    The name of a file has none and is returned unchanged.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        return "***" if re.search(_KEYWORDS, url) else url
    before, at, after = rest.rpartition("@")
    if at and ":" in before:
        rest = f"{before.partition(':')[0]}:***@{after}"
    return re.sub(_HIDDEN, r"\1***", f"{scheme}://{rest}")


def has_password(url: str) -> bool:
    """Return whether `url` holds a secret."""
    return mask_secrets(url) != url


def check_database_url(url: str) -> str:
    """
    Return `url` unchanged if it names a file or a server that a registry can be in.

    Raises:
        UsageError: It is of another kind, or cannot be read; its password is not repeated.
    """
    if "\0" in url or not url:
        raise UsageError("a database has no such name", hint=FORMS)
    if "://" not in url:
        if "=" in url and re.search(_KEYWORDS, url):
            raise UsageError("a database is named by a URL, not by keywords", hint=FORMS)
        return url
    if url.startswith(SQLITE_SCHEME):
        return url
    if not url.startswith(SERVER_SCHEMES):
        raise UsageError(f"{url.partition('://')[0][:40]!r} is no kind of database", hint=FORMS)
    match = re.fullmatch(_AUTHORITY, url)
    if match is None or match[2].count("@") > 1 or "@" in match[3] or "#" in url:
        raise UsageError(f"the database's URL {mask_secrets(url)[:200]} cannot be read", hint=_QUOTE_HINT)
    return url
