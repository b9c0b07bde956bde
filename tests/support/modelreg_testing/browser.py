"""A real browser for tests: headless Chromium, where one is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = os.environ.get("MODELREG_TEST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)

needs_browser = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium here: install it (Debian: apt install chromium) or name one in MODELREG_TEST_CHROMIUM",
)

_MEASURE = """
<script>
addEventListener("load", () => {
  const found = MEASURE;
  const place = document.createElement("pre");
  place.id = "measured";
  place.textContent = JSON.stringify(found);
  document.body.append(place);
});
</script>
"""


def run_browser(page: Path, *options: str, width: int = 1100, height: int = 900, dark: bool = False) -> str:
    """Open a page and return what the browser prints; it ends by itself."""
    assert BROWSER is not None
    profile = page.parent / f"profile-{page.stem}"
    command = [
        BROWSER,
        "--headless",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        f"--user-data-dir={profile}",
        f"--window-size={width},{height}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def measure(page: Path, expression: str, **how: Any) -> Any:
    """Return what a JavaScript expression says of a page once it is laid out: of a copy that allows scripts."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    copy = page.with_name(f"measured-{page.name}")
    copy.write_text(text.replace("</head>", _MEASURE.replace("MEASURE", expression) + "</head>", 1), encoding="utf-8")
    printed = run_browser(copy, "--dump-dom", **how)
    found = re.search(r'<pre id="measured">(.*?)</pre>', printed, re.DOTALL)
    assert found is not None, printed[-2000:]
    return json.loads(unescape(found[1]))


def first_pixel(png: bytes) -> tuple[int, int, int]:
    """Return red, green and blue of the upper left corner of an eight-bit PNG: no filter changes that pixel."""
    data, at = b"", 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        if kind == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(data)
    return raw[1], raw[2], raw[3]
