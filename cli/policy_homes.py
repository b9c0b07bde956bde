"""The registry that `policy` commands look at, if there is one, and whether it knows a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.registry.errors import HomeNotFoundError

if TYPE_CHECKING:
    from modelreg.cli.context import Invocation
    from modelreg.config.settings import Home


def find_home_if_any(invocation: Invocation, *, is_required: bool) -> Home | None:
    """Return the registry; outside one, None: the shipped policies are meant then, but no model is known."""
    try:
        return invocation.find_home()
    except HomeNotFoundError:
        if invocation.home is not None or is_required:
            raise
        return None


def require_model(home: Home, model: str) -> None:
    """Refuse a model that the registry does not have: a typo must not show another policy than is in force."""
    from modelreg.cli.context import open_database
    from modelreg.registry.versions import list_versions

    with open_database(home).read() as connection:
        list_versions(connection, model=model, limit=1)
