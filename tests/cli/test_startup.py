from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modelreg_testing.cli import Shop

HEAVY = {"alembic", "boto3", "numpy", "onnx", "onnxruntime", "rich", "safetensors", "tensorrt", "torch"}
DATABASE = {"asyncio", "sqlalchemy", "sqlite3"}  # SQLAlchemy itself imports asyncio
NEVER_WITH_CORE = {"sqlalchemy.orm", "sqlalchemy.ext", "sqlalchemy.dialects.postgresql"}


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("startup"))
    shop.add_version(word=1)
    shop.add_version(word=2)
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    assert shop.cli("promote", "lenet:2", "--to", "production").code == 0
    return shop


def modules_after(shop: Shop, *words: str) -> set[str]:
    """Return the modules that a process has imported when the command is done."""
    script = (
        "import sys; from modelreg.cli.main import run; code = run(sys.argv[1:]);"
        " print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--home", str(shop.path), *words],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},  # it imports a lot
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("which", "lenet@production"),
        ("which", "lenet@production", "--json"),
        ("pull", "lenet@production", "--into", "{folder}"),
    ],
)
def test_what_reads_no_database_imports_no_database(promoted: Shop, words: tuple[str, ...], tmp_path: Path) -> None:
    words = tuple(word.format(folder=tmp_path) for word in words)
    assert modules_after(promoted, *words) & (HEAVY | DATABASE | {"subprocess", "traceback"}) == set()


def test_a_look_at_what_is_active_loads_nothing_of_what_only_writers_need(promoted: Shop) -> None:
    modules = modules_after(promoted, "which", "lenet@production")
    unneeded = ("marks", "collection", "local_notes")
    assert modules & {f"modelreg.registry.storage.{name}" for name in unneeded} == set()
    assert modules & {"modelreg.config.channel_demands", "modelreg.cli.activations"} == set()


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "lenet"),
        ("show", "lenet"),
        ("show", "lenet:1", "--json"),
        ("history", "lenet"),
        ("report", "lenet:1"),
        ("promote", "lenet:1", "--to", "staging"),
        ("promote", "lenet:2", "--to", "production", "--dry-run"),
        ("rollback", "lenet", "--channel", "production", "--drill"),
    ],
)
def test_what_reads_the_database_imports_sqlalchemy_core_and_nothing_heavier(
    promoted: Shop, words: tuple[str, ...]
) -> None:
    modules = modules_after(promoted, *words)
    assert "sqlalchemy" in modules
    assert modules & (HEAVY | NEVER_WITH_CORE) == set()


def test_what_serves_is_imported_when_it_serves(promoted: Shop) -> None:
    assert modules_after(promoted, "serve", "--help") & (HEAVY | DATABASE | {"starlette", "uvicorn"}) == set()


@pytest.mark.parametrize("words", [("--help",), ("list",)])
def test_a_command_imports_no_other_command(promoted: Shop, words: tuple[str, ...]) -> None:
    others = {f"modelreg.cli.{name}" for name in ("build", "validate", "register", "promote", "doctor", "db")}
    assert modules_after(promoted, *words) & others == set()
