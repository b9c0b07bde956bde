"""What to say of a name that is not there: the fact, and the names that may be meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelreg.registry.errors import NotFoundError


def say_close(name: str, names: Iterable[str]) -> str:
    """Return `Did you mean 'production'?` for names like `name`, or an empty string."""
    import difflib  # noqa: PLC0415 - needed for a message only

    found = [other for other in difflib.get_close_matches(name, list(names), n=3, cutoff=0.6) if other != name]
    return f"Did you mean {', '.join(repr(other) for other in found)}?" if found else ""


def say_target(text: str) -> str:
    """Return which target a text like `sm89`, `sm_8.9` or `compute_89` may mean, or what targets look like."""
    import re  # noqa: PLC0415 - needed for a message only

    found = re.fullmatch(r"(?:sm|cc|compute|compute capability|arch)?[ _-]?(\d{1,2})\.?(\d)[af]?", text, re.ASCII)
    if found:
        return f"did you mean sm_{found[1]}{found[2]}?"
    if "cpu" in text:
        return "did you mean cpu?"
    return (
        "which is cpu, or sm_ and the digits of a compute capability, such as sm_89"
        " (`nvidia-smi --query-gpu=name,compute_cap --format=csv` shows that of a GPU)"
    )


def no_active_release(model: str, channel: str, *, served: Sequence[tuple[str, str]]) -> NotFoundError:
    """Return the error of a channel that serves nothing; `served` has (model, channel) of all that the store knows."""
    promote = f"`modelreg promote {model}:VERSION --to {channel}` promotes one."
    channels = [name for owner, name in served if owner == model and name != channel]
    if channels:
        hint = say_close(channel, channels) or f"It has: {', '.join(channels)}; {promote}"
        return NotFoundError(f"{model}@{channel} has no active release", hint=hint)
    models = sorted({owner for owner, _ in served} - {model})
    return NotFoundError(
        f"{model}@{channel} has no active release: nothing of a model {model!r} was ever promoted",
        hint=say_close(model, models) or f"`modelreg list` shows the models; {promote}",
    )
