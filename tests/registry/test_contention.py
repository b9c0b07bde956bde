"""Many processes on one database: nothing lost, nothing doubled, nobody told lies."""

import os
import subprocess
import sys

import pytest
import sqlalchemy as sa

from modelreg.registry import schema
from modelreg.registry.database import Database
from modelreg.registry.events import verify_chain
from modelreg_testing.registry import add_version, url_of

pytestmark = pytest.mark.slow

PREAMBLE = """
import sys
import sqlalchemy as sa
from modelreg.registry import operations, releases, schema, versions
from modelreg.registry.database import Database
from modelreg.registry.errors import BusyError
from modelreg_testing.registry import ACTOR, add_version, make_pointer, make_source
me = int(sys.argv[2])
database = Database.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


def race(database: Database, code: str, *, processes: int) -> list[str]:
    """Start that many processes, let them go at once, and return what each printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PREAMBLE + code, url_of(database)]
    racers = [
        subprocess.Popen(
            [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for number in range(processes)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    answers = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        answers.append(racer.communicate(timeout=120)[0].strip())
        assert racer.returncode == 0
    return answers


def test_versions_of_eight_processes_have_no_gap_and_no_repeat(database: Database) -> None:
    code = """
for word in range(25):
    with database.write() as connection:
        print(add_version(connection, word=(me, word)).number)
"""
    answers = race(database, code, processes=8)
    numbers = [int(number) for answer in answers for number in answer.split()]
    assert sorted(numbers) == list(range(1, 201))
    for answer in answers:
        given = [int(number) for number in answer.split()]
        assert given == sorted(given)
    with database.read() as connection:
        table = schema.version
        rows = connection.execute(sa.select(table.c.number).order_by(table.c.number)).scalars().all()
        assert rows == list(range(1, 201))
        report = verify_chain(connection)
    assert (report.events, report.broken_at) == (200, None)
    assert database.check() == []


def test_the_same_model_and_source_registered_by_many_at_once_is_one(database: Database) -> None:
    code = """
with database.write() as connection:
    record, created = versions.register_version(
        connection, model="new", source=make_source("same"), message="", tags={}, actor=ACTOR)
print(record.number, created)
"""
    answers = race(database, code, processes=4)
    assert sorted(answers) == ["1 False"] * 3 + ["1 True"]


def test_no_update_is_lost_when_many_read_and_then_write(database: Database) -> None:
    with database.write() as connection:
        add_version(connection)
    code = """
for _ in range(50):
    with database.write() as connection:
        value = connection.execute(sa.select(schema.model.c.next_version)).scalar_one()
        connection.execute(sa.update(schema.model).values(next_version=value + 1))
"""
    race(database, code, processes=4)
    with database.read() as connection:
        assert connection.execute(sa.select(schema.model.c.next_version)).scalar_one() == 2 + 4 * 50


def test_one_of_many_gets_to_move_a_channel_and_the_others_are_told_so(database: Database) -> None:
    with database.write() as connection:
        add_version(connection)
    code = """
with database.write() as connection:
    version = versions.list_versions(connection, model="resnet50")[0]
    channel = releases.ensure_channel(connection, model="resnet50", name="production", actor=ACTOR)
    release = releases.ensure_release(connection, version=version, manifest_digest="0" * 64, engines={}, actor=ACTOR)
try:
    with database.write() as connection:
        pointer = make_pointer(version, release="0" * 64)
        operations.begin_operation(
            connection, channel_id=channel, release_id=release, pointer=pointer, owner={"me": me}, actor=ACTOR)
except BusyError as error:
    print(error)
else:
    print("mine")
"""
    answers = race(database, code, processes=4)
    refusal = "channel resnet50@production is being moved by another command"
    assert sorted(answers) == [refusal] * 3 + ["mine"]
