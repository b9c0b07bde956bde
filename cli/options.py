"""Options and argument types that commands share, so that one word is spelled and read one way everywhere."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modelreg.cli.context import Invocation
from modelreg.registry.errors import UsageError
from modelreg.registry.references import ModelReference, check_name, parse_reference

if TYPE_CHECKING:
    from modelreg.builders.profiles import ProfileShapes
    from modelreg.registry.words import Precision

CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),  # trtexec and Polygraphy mix the two
}

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=click.Command)


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that keeps a global option's value, given before the command or after it."""

    def keep(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(Invocation), name, value)

    return keep


def read_flag(value: str) -> tuple[str, str]:
    """Read KEY=VALUE of a setting; whether there is such a key is seen with all settings."""
    key, found, text = value.partition("=")
    if not found or not key.strip():
        raise click.BadParameter(f"{value[:80]!r} is not KEY=VALUE")
    return key.strip(), text


def _add_flags(ctx: click.Context, _parameter: click.Parameter, values: tuple[tuple[str, str], ...]) -> None:
    """Keep settings that are given before the command and after it; what is given last counts."""
    invocation = ctx.ensure_object(Invocation)
    invocation.flags = (*invocation.flags, *values)


def add_global_options(command: C) -> C:
    """Add the options that every command has, after its own; they are read from the `Invocation`, not passed."""
    home_help = "The registry (or MODELREG_HOME; default: .modelreg here or above)."
    flags = {
        "as_json": (["--json"], "Print one JSON document."),
        "verbose": (["-v", "--verbose"], "Say more; show the traceback of an error."),
        "no_color": (["--no-color"], "Print without colours (or NO_COLOR)."),
    }
    command.params.append(
        click.Option(
            ["--home"],
            type=click.Path(path_type=Path),
            expose_value=False,
            is_eager=True,
            callback=_store("home"),
            metavar="PATH",
            help=home_help,
        )
    )
    command.params.append(
        click.Option(
            ["--set"],
            type=read_flag,
            multiple=True,
            expose_value=False,
            is_eager=True,
            callback=_add_flags,
            metavar="KEY=VALUE",
            help="Change a setting for this command (`modelreg config show`).",
        )
    )
    for name, (spellings, text) in flags.items():
        command.params.append(
            click.Option(spellings, is_flag=True, expose_value=False, is_eager=True, callback=_store(name), help=text)
        )
    return command


def make_command(
    name: str, *, help_line: str, examples: str, cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of one command: its line in the list of commands, and what its help page ends with."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        epilog = f"\b\nExamples:\n{_indent(examples)}"
        made = click.command(name, cls, short_help=help_line, epilog=epilog, context_settings=CONTEXT)(function)
        return add_global_options(made)

    return decorate


def _indent(examples: str) -> str:
    return "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())


_LARGEST = 2**63 - 1  # of a database


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least `minimum`; unlike click's, it says in words what is wrong."""

    def number(value: str) -> int:
        try:
            found = int(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a whole number") from None
        if found < minimum:
            raise click.BadParameter(f"{found} is below {minimum}")
        if found > _LARGEST:
            raise click.BadParameter(f"{value} is above {_LARGEST}")
        return found

    return number


def positive_number(value: str) -> float:
    """Read a number above zero."""
    try:
        found = float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number") from None
    if not 0 < found < math.inf:
        raise click.BadParameter(f"{value} is not a number above 0")
    return found


def read_bytes(value: str) -> int:
    """Read a number of bytes, with K, M or G for binary multiples."""
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.isdecimal() or not int(digits):
        raise click.BadParameter(f"{value!r} is no number of bytes, for example 64M")
    return int(digits) * factor


def list_option(
    *names: str, type: Callable[[str], tuple[Any, ...]], default: Sequence[str] = (), metavar: str, help: str
) -> Callable[[F], F]:
    """Return an option of comma-separated words that may be repeated: what is given each time adds up."""

    def add_up(_ctx: click.Context, _parameter: click.Parameter, values: tuple[tuple[Any, ...], ...]) -> Any:
        return tuple(dict.fromkeys(word for words in values for word in words))

    return click.option(
        *names,
        type=type,
        multiple=True,
        default=tuple(default),
        show_default=bool(default),
        callback=add_up,
        metavar=metavar,
        help=help,
    )


dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")

_LONGEST_MESSAGE = 10_000
_LONGEST_TAG = 255


def read_text(value: str, *, longest: int) -> str:
    """Read words that are kept: no bytes that are no UTF-8, no control characters but line breaks and tabs."""
    if len(value) > longest:
        raise click.BadParameter(f"it has {len(value)} characters, {longest} are allowed")
    for character in value:
        if "\ud800" <= character <= "\udfff":
            raise click.BadParameter(f"it has a byte that is no UTF-8, {character!a}")
        if (character < " " or "\x7f" <= character < "\xa0") and character not in "\n\t":
            raise click.BadParameter(f"it has a control character, {character!a}")
    return value


def read_message(value: str) -> str:
    """Read the reason of a change."""
    return read_text(value, longest=_LONGEST_MESSAGE)


message_option = click.option(
    "-m", "--message", type=read_message, default="", metavar="TEXT", help="Why; kept in the history."
)


def expect_current_option(command: F) -> F:
    """Add `--expect-current`."""
    return click.option(
        "--expect-current",
        type=whole_number(0),
        metavar="GENERATION",
        help="Refuse (exit 4) unless the channel is at this generation; 0: nothing may be active.",
    )(command)


def read_reference(value: str) -> ModelReference:
    """Read a model reference; raises InvalidReferenceError."""
    return parse_reference(value)


def read_model_name(value: str) -> str:
    """Read a model's name; raises InvalidReferenceError."""
    return check_name(value)


def read_channel_name(value: str) -> str:
    """Read a channel's name; raises InvalidReferenceError."""
    return check_name(value, what="channel")


def read_words(value: str) -> tuple[str, ...]:
    """Read comma-separated words; white space around them is dropped, an empty word is refused."""
    words = tuple(word.strip() for word in value.split(","))
    if not all(words):
        raise click.BadParameter(f"{value!r} has a comma with nothing beside it" if "," in value else "it is empty")
    return tuple(dict.fromkeys(words))


def read_target(value: str) -> str:
    """Read one target: `cpu`, or `sm_` and the digits of a compute capability; upper case is the same."""
    from modelreg.registry.suggestions import say_target

    text = value.strip().lower()
    if not re.fullmatch(r"cpu|sm_\d{2,4}", text, re.ASCII):
        raise click.BadParameter(f"{value!r} is no target, {say_target(text)}")
    return text


def read_targets(value: str) -> tuple[str, ...]:
    """Read comma-separated targets, in the order given."""
    return tuple(dict.fromkeys(read_target(word) for word in read_words(value)))


def read_whole_numbers(value: str) -> tuple[int, ...]:
    """Read comma-separated numbers above zero: ids, or sizes."""
    return tuple(whole_number(1)(word) for word in read_words(value))


def read_precision(value: str) -> Precision:
    """Read one precision."""
    from modelreg.registry.words import Precision

    try:
        return Precision(value.strip().lower())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(Precision)}") from None


def read_precisions(value: str) -> tuple[Precision, ...]:
    """Read comma-separated precisions, in the order given."""
    return tuple(read_precision(word) for word in read_words(value))


def profile_options(command: F) -> F:
    """Add trtexec's options for optimisation profiles; the command gets them paired, as `profiles`."""

    @functools.wraps(command)
    def with_profiles(*arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in ("numbers", "minima", "optima", "maxima")}
        return command(*arguments, profiles=_pair_profiles(given), **options)

    shapes = {
        "minima": (
            ("--minShapes", "--min-shapes"),
            "Smallest shapes of a profile (default: those of --optShapes); repeated for several profiles.",
        ),
        "optima": (
            ("--optShapes", "--opt-shapes"),
            "Shapes that a profile is tuned for (default: those of --maxShapes); alone, the only ones that it takes.",
        ),
        "maxima": (("--maxShapes", "--max-shapes"), "Largest shapes of a profile (default: those of --optShapes)."),
    }
    for name, (spellings, text) in reversed(shapes.items()):
        option = click.option(*spellings, name, multiple=True, metavar="INPUT:1x3x...", help=text)
        with_profiles = option(with_profiles)
    number = click.option(
        "--profile",
        "numbers",
        type=whole_number(0),
        multiple=True,
        metavar="N",
        help="Number of the profile that the shapes beside it are of.",
    )
    made: F = number(with_profiles)  # type: ignore[assignment]
    return made


def _pair_profiles(given: dict[str, tuple[Any, ...]]) -> tuple[ProfileShapes, ...]:
    if not any(given.values()):
        return ()
    from modelreg.builders.profiles import pair_profiles

    return pair_profiles(**given)


def choose_channel(reference: ModelReference, channel: str | None) -> str | None:
    """
    Return the channel that NAME@CHANNEL and `--channel` name together, or None where neither does.

    Raises:
        UsageError: They name two, or the reference names a version.
    """
    if reference.version is not None or reference.digest is not None:
        raise UsageError(
            f"{reference} names a version, and a model's channel is meant", hint=f"Write {reference.model}@CHANNEL."
        )
    if None not in (channel, reference.channel) and channel != reference.channel:
        raise UsageError(f"{reference} and --channel {channel} name two channels", hint="Leave one of them out.")
    return channel or reference.channel


def read_tag(value: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, found, text = value.partition("=")
    if not found or not key.strip():
        raise click.BadParameter(f"{value!r} is not KEY=VALUE")
    return read_text(key.strip(), longest=_LONGEST_TAG), read_text(text, longest=_LONGEST_TAG)
