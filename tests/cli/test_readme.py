from __future__ import annotations

import pytest

from modelreg.cli.main import SECTIONS
from modelreg_testing.checkout import ROOT, has_packages

pytestmark = pytest.mark.skipif(not has_packages, reason="the README is not beside the installed package")


@pytest.mark.parametrize("name", [name for commands in SECTIONS.values() for name in commands])
def test_every_command_is_in_a_table_of_the_readme(name: str) -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert any(row.startswith((f"| `{name}", f"| `modelreg {name}")) for row in rows)
