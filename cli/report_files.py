"""The options that write reports, and writing them: each file appears whole or not at all."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modelreg.registry.errors import UsageError

if TYPE_CHECKING:
    from modelreg.registry.words import Json

F = TypeVar("F", bound=Callable[..., Any])
STDOUT = "-"
_KINDS = {
    "report-json": "Write the report as JSON; its schema is published.",
    "junit": "Write the report as JUnit XML.",
    "sarif": "Write what failed as SARIF 2.1.0.",
    "html": "Write the report as one HTML page that needs nothing else.",
    "markdown": "Write the report as Markdown for a pull request.",
}


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Which kinds of reports are wanted, and where; `-` is stdout."""

    places: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def uses_stdout(self) -> bool:
        """Return whether one of them takes stdout, so that nothing else may be printed there."""
        return STDOUT in self.places.values()

    def require_writable(self, *, as_json: bool) -> None:
        """
        Check that they can be written, before work that takes long.

        Raises:
            UsageError: A folder is not there or cannot be written, a place is a folder, or two go to one place.
        """
        twice = [place for place in self.places.values() if [*self.places.values()].count(place) > 1]
        if twice:
            raise UsageError(f"two reports cannot both go to {twice[0]}", hint="Name a file for each.")
        if as_json and self.uses_stdout:
            raise UsageError("--json and a report cannot both go to stdout", hint="Name a file for the report.")
        for kind, place in self.places.items():
            path = Path(place)
            if place == STDOUT:
                continue
            if path.is_dir():
                raise UsageError(f"--{kind} {place} is a folder", hint="Name a file in it.")
            if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
                raise UsageError(f"--{kind}: cannot write into {path.parent}", hint="Make the folder first.")

    def write(self, document: Json) -> None:
        """Write all of them."""
        for kind, place in self.places.items():
            content = _render(kind, document)
            if place == STDOUT:
                click.echo(content, nl=False)
            else:
                replace_file(Path(place), content)


def report_options(command: F) -> F:
    """Add an option for each kind of report; the command gets them together, as `reports`."""

    @functools.wraps(command)
    def with_reports(*arguments: Any, **options: Any) -> Any:
        found = {kind: options.pop(kind.replace("-", "_")) for kind in _KINDS}
        return command(*arguments, reports=ReportFiles({k: v for k, v in found.items() if v is not None}), **options)

    for kind, text in reversed(_KINDS.items()):
        with_reports = click.option(f"--{kind}", kind.replace("-", "_"), metavar="FILE", help=text)(with_reports)
    made: F = with_reports  # type: ignore[assignment]
    return made


def _render(kind: str, document: Json) -> bytes:
    if kind == "html":
        from modelreg.validators.reports.page import render_page

        return render_page(document)
    if kind == "junit":
        from modelreg.validators.reports.junit import render_junit

        return render_junit(document)
    if kind == "sarif":
        from modelreg.validators.reports.sarif import render_sarif

        return render_sarif(document)
    if kind == "markdown":
        from modelreg.validators.reports.markdown import render_markdown

        return render_markdown(document).encode()
    import json

    return json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"


def replace_file(path: Path, content: bytes) -> None:
    """Write beside the file and rename; what is no file (a pipe, /dev/stderr) is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
