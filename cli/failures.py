"""How an error reaches the user: one line of fact, one of advice, an exit code; a document with `--json`."""

from __future__ import annotations

import errno
import re
import sys
from dataclasses import dataclass, field

import click

from modelreg.cli.render import OutputError, one_line, print_document
from modelreg.cli.render import tell as tell_user
from modelreg.registry.errors import ModelregError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_HINTS = {
    errno.ENOSPC: "The disk is full; free some space and run the command again.",
    errno.EDQUOT: "The disk quota is used up; free some space and run the command again.",
    errno.EROFS: "The file system is read-only.",
    errno.EACCES: "Check the permissions.",
    errno.EPERM: "Check the permissions.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is said about an error."""

    kind: str
    message: str
    exit_code: int
    hint: str = ""
    details: dict[str, object] = field(default_factory=dict)


def tell(error: ModelregError) -> Failure:
    """Return what to say about one of our own errors."""
    return Failure(
        kind=_kind(type(error)),
        message=str(error),
        exit_code=error.exit_code,
        hint=error.hint(),
        details=error.details(),
    )


def tell_foreign(error: BaseException) -> Failure:
    """Return what to say about an error of click, of the operating system, or of our own making."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure(kind="interrupted", message="interrupted", exit_code=_exit_code_of_interrupt(error))
    if isinstance(error, click.ClickException):
        return Failure(kind="usage", message=_usage_message(error), exit_code=EXIT_USAGE, hint=_usage_hint(error))
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        where = f"{error.filename}: " if error.filename else ""
        return Failure(
            kind="system", message=where + what, exit_code=EXIT_FAILED, hint=_HINTS.get(error.errno or 0, "")
        )
    return Failure(
        kind="internal",
        message=f"internal error: {type(error).__name__}: {error}",
        exit_code=EXIT_FAILED,
        hint="This is a fault of modelreg: run again with -v and report what it prints.",
    )


def _exit_code_of_interrupt(error: BaseException) -> int:
    """Return the code of the interrupt itself, which click keeps as the cause of its own exception."""
    code = getattr(error.__cause__ or error, "exit_code", EXIT_INTERRUPTED)
    return code if isinstance(code, int) else EXIT_INTERRUPTED


def report(failure: Failure, error: BaseException, *, as_json: bool, verbose: bool) -> int:
    """Write `failure` to stderr, with `as_json` as a document to stdout too; return the exit code."""
    if verbose and failure.kind not in ("usage", "interrupted"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    _print_failure(failure)
    if as_json:
        _print_document(failure)
    return failure.exit_code


def _print_document(failure: Failure) -> None:
    body = {
        "kind": failure.kind,
        "message": failure.message,
        "hint": failure.hint,
        "exit_code": failure.exit_code,
    }
    try:
        print_document({"error": {**failure.details, **body}})
    except OutputError:  # it was said on stderr, and the exit code says it again
        return
    except (TypeError, ValueError):  # particulars that came from elsewhere and that JSON cannot say
        print_document({"error": body})


def report_after_result(error: ModelregError) -> int:
    """Write the error of a command that has printed its result, the one document included; return the exit code."""
    failure = tell(error)
    _print_failure(failure)
    return failure.exit_code


def _print_failure(failure: Failure) -> None:
    tell_user(f"modelreg: error: {one_line(failure.message)}")
    for hint in failure.hint.splitlines():
        tell_user(f"  hint: {one_line(hint)}")


def _kind(error: type[ModelregError]) -> str:
    """Return the error's class as a word: `ActivationConflictError` is `activation-conflict`."""
    name = error.__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _plain(message: str) -> str:
    """Return one of click's sentences in the form of our own messages."""
    text = " ".join(message.split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _usage_message(error: click.ClickException) -> str:
    missing = _missing_option(error)
    return _plain(error.format_message()) if missing is None else f"missing option {missing.opts[0]!r}"


def _missing_option(error: click.ClickException) -> click.Option | None:
    option = error.param if isinstance(error, click.MissingParameter) else None
    return option if isinstance(option, click.Option) else None


def _usage_hint(error: click.ClickException) -> str:
    missing = _missing_option(error)
    if missing is not None:
        return f"Add {missing.opts[0]} {missing.metavar or 'VALUE'}."
    context = error.ctx if isinstance(error, click.UsageError) else None
    return "" if context is None else f"Run `{context.command_path} --help`."
