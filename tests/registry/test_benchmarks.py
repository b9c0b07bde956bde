from __future__ import annotations

from collections.abc import Mapping

import pytest

from modelreg.registry import benchmarks, blobs, schema
from modelreg.registry.database import Database
from modelreg.registry.errors import DatabaseError, IntegrityError
from modelreg.registry.garbage.database_facts import read_database_facts, read_head
from modelreg.registry.garbage.needs import Need, StoreFacts, Thing, judge
from modelreg.registry.schema import benchmark
from modelreg.registry.storage.marks import MarkedKind
from modelreg.registry.words import BlobKind, Precision
from modelreg_testing.registry import ACTOR, add_benchmark, add_engine, add_version, digest_of, row_counts


def test_a_benchmark_is_read_back_as_it_was_recorded_with_its_blob_and_one_event(database: Database) -> None:
    before = row_counts(database)
    with database.write() as connection:
        engine = add_engine(connection, add_version(connection))
        head = read_head(connection)
        made = add_benchmark(connection, engine, batch=8, median_ms=0.25)
        assert read_head(connection) == head + 1  # what makes a blob needed is an event: gc goes by it
    with database.read() as connection:
        assert benchmarks.newest_benchmarks(connection, version_id=engine.version_id) == {engine.id: [made]}
        assert benchmarks.list_samples(connection, version_id=engine.version_id) == [made.samples_digest]
        kinds = {each.digest: each.kind for each in blobs.list_blobs(connection)}
    assert kinds[made.samples_digest] is BlobKind.SAMPLES
    assert made.shown["median_ms"] == 0.25
    assert row_counts(database)["benchmark"] == before["benchmark"] + 1
    assert database.check() == []


def test_the_newest_of_each_batch_size_is_shown_and_every_one_is_listed(database: Database) -> None:
    with database.write() as connection:
        version = add_version(connection)
        first, second = add_engine(connection, version), add_engine(connection, version, precision=Precision.FP16)
        other = add_benchmark(connection, add_engine(connection, add_version(connection, word="other")))
        old = add_benchmark(connection, first, batch=8, word="old")
        new = add_benchmark(connection, first, batch=8, word="new")
        small = add_benchmark(connection, first, batch=1)
        beside = add_benchmark(connection, second, batch=4)
    with database.read() as connection:
        newest = benchmarks.newest_benchmarks(connection, version_id=version.id)
        every = benchmarks.list_benchmarks(connection, version_id=version.id, limit=10)
        cut = benchmarks.list_benchmarks(connection, version_id=version.id, limit=2)
    assert newest == {first.id: [small, new], second.id: [beside]}
    assert every == [beside, small, new, old]
    assert cut == [beside, small]
    assert other not in every


def test_several_batch_sizes_are_all_there_or_none(database: Database) -> None:
    with database.write() as connection:
        engine = add_engine(connection, add_version(connection))
        kept = add_benchmark(connection, engine)
    measured = [
        benchmarks.Measured(
            batch=batch,
            boundary="host",
            figures={"boundaries": {"host": {}}},
            samples_digest=kept.samples_digest if batch == 2 else digest_of("more"),
            samples_bytes=1,  # the blob has another size: one of the two is wrong
        )
        for batch in (1, 2)
    ]
    with pytest.raises(IntegrityError, match="is recorded with 80 bytes"), database.write() as connection:
        benchmarks.record_benchmarks(
            connection, engine=engine, measured=measured, settings={}, clocks={}, host={}, actor=ACTOR
        )
    with database.read() as connection:
        assert benchmarks.list_benchmarks(connection, version_id=engine.version_id, limit=9) == [kept]


def test_a_collector_keeps_the_runs_of_benchmarks_even_where_their_blob_is_not_noted(database: Database) -> None:
    with database.write() as connection:
        made = add_benchmark(connection, add_engine(connection, add_version(connection)))
        connection.execute(schema.blob.delete().where(schema.blob.c.digest == made.samples_digest))
    with database.read() as connection:
        facts = read_database_facts(connection)
    nothing: Mapping[str, Need] = {}
    needs = judge(StoreFacts(releases=nothing, manifests={}, pinned=frozenset()), facts, keep_versions=0)
    assert needs.find(Thing(kind=MarkedKind.BLOB, digest=made.samples_digest)) is Need.RECORD


@pytest.mark.parametrize("column", ["figures", "comparisons"])
def test_a_row_that_means_nothing_is_named_by_the_check(database: Database, column: str) -> None:
    with database.write() as connection:
        version = add_version(connection)
        add_benchmark(connection, add_engine(connection, version))
        connection.execute(benchmark.update().values({column: 5}))
    (fault,) = database.check()
    assert f"of benchmark: {column} cannot be read" in fault


def test_a_row_that_means_nothing_is_an_error_that_names_the_table(database: Database) -> None:
    with database.write() as connection:
        version = add_version(connection)
        add_benchmark(connection, add_engine(connection, version))
        connection.execute(benchmark.update().values(comparisons=5))
    with pytest.raises(DatabaseError, match="a row of benchmark cannot be read"), database.read() as connection:
        benchmarks.newest_benchmarks(connection, version_id=version.id)
