"""What to write where a command needs a channel and none is named: one of those that the store knows."""

from __future__ import annotations

from modelreg.cli.context import Invocation, open_store
from modelreg.registry.errors import ModelregError


def advise_channel(invocation: Invocation, model: str) -> str:
    """Return how to name a channel of a model; without a store that can be asked, only the spelling."""
    try:
        listed = open_store(invocation.find_home()).list_channels()
    except ModelregError:  # the command line is wrong whatever the store is like
        listed = []
    channels = sorted(channel for owner, channel in listed if owner == model)
    if not channels:
        return f"Write {model}@CHANNEL; `modelreg show {model}` lists its channels."
    return f"It has {', '.join(channels)}: write {model}@{channels[0]}" + (", for example." if channels[1:] else ".")
