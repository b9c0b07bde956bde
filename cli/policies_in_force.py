"""The policies that a registry has for a model or a channel of it now, with the reasons that were given for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelreg.config.acknowledgements import Acknowledgement
    from modelreg.config.current_policies import CurrentPolicies
    from modelreg.config.settings import Home
    from modelreg.registry.database import Database


def policies_in_force(home: Home, database: Database, *, model: str, channel: str | None = None) -> CurrentPolicies:
    """Return the policies of a model; with a channel, those of the channel, and what it demands of verdicts."""
    from modelreg.config.current_policies import CurrentPolicies

    return CurrentPolicies(
        home.path,
        model=model,
        channel=channel,
        demands=None if channel is None else home.settings.channel_demands(channel),
        acknowledged=ask_acknowledged(database),
    )


def warn_of_unknown_channel(home: Home, database: Database, *, model: str | None, channel: str) -> None:
    """Tell that nothing is known of a channel: a typo must not silently mean the model's policies."""
    from modelreg.cli.render import print_warning
    from modelreg.config.policy_files import channels_with_policies
    from modelreg.registry.releases import list_channels
    from modelreg.registry.suggestions import say_close

    settings = home.settings
    with database.read() as connection:
        made = {name for owner, name in list_channels(connection) if model in (None, owner)}
    known = {*made, *settings.channels, *settings.demands, *channels_with_policies(home.path, model=model)}
    if channel not in known:
        close = say_close(channel, sorted(known))
        print_warning(f"nothing is known of a channel {channel!r}, neither policies nor releases. {close}".rstrip(". "))


def ask_acknowledged(database: Database) -> Callable[[], Sequence[Acknowledgement]]:
    """Return what reads the reasons that were given for loosened policies: a walk through the log, so not at once."""

    def read() -> Sequence[Acknowledgement]:
        from modelreg.config.acknowledgements import parse_acknowledgement
        from modelreg.registry.policy_events import list_reasons

        with database.read() as connection:
            return [parse_acknowledgement(subject, details) for subject, details in list_reasons(connection)]

    return read
