"""Elements of the HTML page: whatever comes from elsewhere becomes text here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from modelreg.validators.reports.say import clean

_SIGNS = {"pass": "✓", "fail": "✗", "error": "✗", "incomplete": "!", "inconclusive": "?", "skipped": "-"}


def as_text(value: object) -> str:
    """Return a text that is nothing but text."""
    return escape(clean(value))


def as_name(value: object) -> str:
    """Return a text from elsewhere: whatever its direction of writing, it does not turn what follows."""
    return f"<bdi>{as_text(value)}</bdi>"


def as_digest(digest: object) -> str:
    """Return the beginning of a digest, which shows the whole one where the pointer rests."""
    return f'<code title="{as_text(digest)}">{as_text(digest)[:12]}</code>' if digest else "none"


def as_badge(word: object) -> str:
    """Return an outcome or a verdict as a word with a sign and a colour."""
    sign = _SIGNS.get(str(word), "")
    kind = str(word) if str(word) in _SIGNS else ""
    return f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {as_text(word)}</span>'


def as_figure(plot: str, caption: str, *, kind: str = "") -> str:
    """Return a plot with the words below it."""
    named = f' class="{kind}"' if kind else ""
    return f"<figure{named}>{plot}<figcaption>{as_name(caption)}</figcaption></figure>"


def as_table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[Any]], *, kind: str = "plain") -> str:
    """Return a table of cells that are HTML already; a header that ends with `>` is of numbers, to the right."""
    kinds = [' class="right"' if header.endswith(">") else "" for header in headers]
    head = "".join(
        f'<th scope="col"{kind}>{as_text(header.rstrip(">"))}</th>' for header, kind in zip(headers, kinds, strict=True)
    )
    body = []
    for row in rows:
        first = f'<th scope="row"{kinds[0]}>{row[0]}</th>'
        rest = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True))
        body.append(f"<tr>{first}{rest}</tr>")
    said = as_text(caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{said}"><table class="{kind}"><caption>{said}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
