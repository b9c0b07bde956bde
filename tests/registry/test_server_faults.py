"""A server that goes away at each commit of a promotion or a rollback, before it commits or before it can say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from modelreg.registry import operations, releases
from modelreg.registry.doctor import Doctor, Level
from modelreg.registry.errors import CommitUnknownError
from modelreg.registry.events import verify_chain
from modelreg.registry.postgresql import PostgresqlServer
from modelreg.registry.promotion import PromotionRequest, RollbackRequest
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.words import Precision
from modelreg_testing.cli import Shop
from modelreg_testing.postgresql import PostgresServer

pytestmark = pytest.mark.slow

ACTIONS = ("promote", "rollback")
MOST_COMMITS = 6


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    with postgres.new_database(template=postgres.template) as server:
        made = Shop(tmp_path, database_url=server.url)
        for word in (1, 2, 3):
            made.add_version(word=word)
        for version in (1, 2):
            act(made, "promote", version)
        yield made


def act(shop: Shop, action: str, version: int) -> bool:
    """Promote a version, or roll back; return whether the database was told."""
    with shop.database() as database:
        work = Releases(database=database, storage=shop.storage, actor="ada")
        if action == "promote":
            request = PromotionRequest(preference=lambda _target: (Precision.FP32,))
            return work.promote(
                ModelReference(model="lenet", version=version), channel="production", request=request
            ).recorded
        return work.rollback("lenet", channel="production", request=RollbackRequest()).recorded


@contextmanager
def lost_at(number: int, postgres: PostgresServer, *, is_committed: bool) -> Iterator[list[int]]:
    """Let the server go away at the commit of that number, or just after it has committed; count the commits."""
    commits: list[int] = []
    checked = PostgresqlServer.require_sound

    def go_away(self: PostgresqlServer, connection: sa.Connection) -> None:
        checked(self, connection)
        commits.append(number)
        if len(commits) == number:
            raw: Any = connection.connection.dbapi_connection
            pid = raw.info.backend_pid
            if is_committed:
                raw.execute("COMMIT")
                raw.execute("SELECT 1")  # else the driver knows that nothing is left to commit, and asks nobody
            postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresqlServer, "require_sound", go_away)
        yield commits


def generations(shop: Shop) -> list[int]:
    with shop.database() as database, database.read() as connection:
        channel = releases.find_channel(connection, model="lenet", name="production")
        assert channel is not None
        return [row.generation for row in reversed(releases.list_activations(connection, channel_id=channel))]


def served(shop: Shop) -> tuple[int, int]:
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    return pointer.version, pointer.generation


def outcome_of(shop: Shop, action: str, version: int) -> str:
    try:
        recorded = act(shop, action, version)
    except CommitUnknownError:
        return "unknown"
    return "told" if recorded else "not told"


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("is_committed", [False, True], ids=["not committed", "committed"])
def test_whatever_commit_is_lost_the_next_command_finds_the_books_in_order(
    shop: Shop, postgres: PostgresServer, action: str, is_committed: bool
) -> None:
    outcomes = []
    for number in range(1, MOST_COMMITS):
        version, generation = served(shop)
        wanted = 3 if version == 2 else 2
        with lost_at(number, postgres, is_committed=is_committed) as commits:
            outcomes.append(outcome_of(shop, action, wanted))
        moved = 0 if outcomes[-1] == "unknown" else 1  # a command that fails has moved nothing
        assert served(shop)[1] == generation + moved
        if len(commits) < number:
            break
        act(shop, "promote", 1)
        assert served(shop)[0] == 1
        act(shop, "promote", 2)
        assert generations(shop) == list(range(1, served(shop)[1] + 1))
        with shop.database() as database:
            findings = Doctor(database=database, storage=shop.storage, actor="ada").examine()
            assert {finding.level for finding in findings} == {Level.OK}, findings
            with database.read() as connection:
                assert operations.open_operations(connection) == []
                assert verify_chain(connection).broken_at is None
    assert outcomes[-1] == "told", "every commit was lost once, and then none"
    assert "not told" in outcomes
    assert ("unknown" in outcomes) == (action == "promote")
