"""Variables of the environment that look like settings and are none."""

from __future__ import annotations

from collections.abc import Iterable

from modelreg.config.keys import (
    ACTOR_VARIABLE,
    HOME_VARIABLE,
    KEYS,
    VARIABLE_PREFIX,
    unknown_variables,
    variable_of,
)


def describe_unknown(environment: Iterable[str]) -> list[str]:
    """Return a warning for each of them, with the name that may be meant."""
    return [f"{name} sets nothing{_suggest(name)}" for name in unknown_variables(environment)]


def _suggest(name: str) -> str:
    import difflib  # noqa: PLC0415 - needed for a message only

    names = [variable_of(key.name) for key in KEYS] + [HOME_VARIABLE, ACTOR_VARIABLE]
    ends = [each.removeprefix(VARIABLE_PREFIX) for each in names]  # what all have in common makes all of them alike
    close = difflib.get_close_matches(name.removeprefix(VARIABLE_PREFIX), ends, n=1)
    return f": did you mean {VARIABLE_PREFIX}{close[0]}?" if close else ": `modelreg config show -v` lists what does"
