from typing import Any

import pytest
import sqlalchemy as sa

from modelreg.registry import channel_states, golden_sets, schema, validations, version_rows, versions
from modelreg.registry.blobs import list_blobs
from modelreg.registry.clock import utc_now
from modelreg.registry.contents import StoredFile
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError, InvalidReferenceError, NotFoundError, UsageError
from modelreg.registry.references import ModelReference, parse_reference
from modelreg.registry.statements import Statement
from modelreg.registry.words import BlobKind
from modelreg_testing.registry import (
    activate,
    add_engine,
    add_golden_set,
    add_version,
    digest_of,
    explain,
    make_source,
    row_counts,
)


def test_what_was_registered_is_read_back_the_same(database: Database) -> None:
    files = (
        StoredFile(path="net.onnx", digest="1" * 64, size_bytes=100),
        StoredFile(path="weights/b.bin", digest="2" * 64, size_bytes=2**40),
        StoredFile(path="weights/a.bin", digest="3" * 64, size_bytes=0),
    )
    source = make_source("ä")._replace(files=files, unbuildable=("input x is a sequence",), opsets={"": 21, "é": 1})
    with database.write() as connection:
        made, created = versions.register_version(
            connection, model="net", source=source, message="erste\nVersion", tags={"k": "v"}, actor="me"
        )
    assert created
    assert (made.model, made.number, made.source, made.tags) == ("net", 1, source, {"k": "v"})
    with database.read() as connection:
        assert versions.get_version(connection, ModelReference(model="net", version=1)) == made
        kinds = [(blob.digest[0], blob.size_bytes, blob.kind) for blob in list_blobs(connection)]
    assert kinds == [
        ("1", 100, BlobKind.SOURCE),
        ("2", 2**40, BlobKind.EXTERNAL_DATA),
        ("3", 0, BlobKind.EXTERNAL_DATA),
    ]


def test_a_record_that_a_caller_changes_does_not_change_the_next_one(database: Database) -> None:
    with database.write() as connection:
        add_version(connection)
    with database.read() as connection:
        first = versions.get_version(connection, ModelReference(model="resnet50"))
        first.source.opsets["x"] = 1
        first.source.node_counts.clear()
        first.tags.clear()
        second = versions.get_version(connection, ModelReference(model="resnet50"))
    assert second.source == make_source()
    assert second.tags == {"run": "0"}


def test_numbers_count_up_within_each_model(database: Database) -> None:
    with database.write() as connection:
        numbers = [add_version(connection, model=name, word=word).number for word in range(3) for name in ("a", "b")]
    assert numbers == [1, 1, 2, 2, 3, 3]


def test_the_same_bytes_give_the_same_version(database: Database) -> None:
    with database.write() as connection:
        first = add_version(connection, word="same")
        add_version(connection, word="other")
    rows = row_counts(database)
    with database.write() as connection:
        again, created = versions.register_version(
            connection, model="resnet50", source=make_source("same"), message="other", tags={}, actor="you"
        )
    assert not created
    assert again == first
    assert row_counts(database) == rows


def test_the_same_bytes_under_another_model_are_another_version(database: Database) -> None:
    with database.write() as connection:
        assert add_version(connection, model="a").id != add_version(connection, model="b").id
        assert len(list_blobs(connection)) == 1


def test_a_failed_registration_uses_no_number(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            add_version(connection, word="lost")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert set(row_counts(database).values()) == {0}
    with database.write() as connection:
        assert add_version(connection, word="kept").number == 1


@pytest.mark.parametrize("name", ["", "Model", "a/b", "../x", "a b", "latest", "é", "x" * 129, "-x"])
def test_a_name_that_is_not_allowed_is_refused(database: Database, name: str) -> None:
    with database.write() as connection, pytest.raises(InvalidReferenceError):
        add_version(connection, model=name)
    assert set(row_counts(database).values()) == {0}


def test_a_blob_that_changed_its_size_is_refused(database: Database) -> None:
    with database.write() as connection:
        add_version(connection, model="a")
    wrong = StoredFile(path="model.onnx", digest=make_source().digest, size_bytes=1)
    with database.write() as connection, pytest.raises(IntegrityError, match="with 4096 bytes, now it has 1"):
        add_version(connection, model="b", source=make_source(files=[wrong]))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("resnet50", 3),
        ("resnet50:2", 2),
        ("models:/resnet50/1", 1),
        ("resnet50@production", 1),
        (f"resnet50@sha256:{digest_of('source 1')}", 2),
    ],
)
def test_every_form_of_reference_finds_its_version(database: Database, text: str, number: int) -> None:
    with database.write() as connection:
        made = [add_version(connection, word=word) for word in range(3)]
        engine = add_engine(connection, made[0])
    activate(database, made[0], engine=engine)
    with database.read() as connection:
        assert versions.get_version(connection, parse_reference(text)) == made[number - 1]


def test_a_channel_means_its_newest_generation(database: Database) -> None:
    with database.write() as connection:
        made = [add_version(connection, word=word) for word in range(2)]
        built = [add_engine(connection, version) for version in made]
    current, _ = activate(database, made[1], engine=built[1])
    activate(database, made[0], engine=built[0], current=current)
    with database.read() as connection:
        assert versions.get_version(connection, parse_reference("resnet50@production")) == made[0]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("resnet05", "there is no model 'resnet05'", "Did you mean 'resnet50'?"),
        ("vit", "there is no model 'vit'", "Run `modelreg list`."),
        ("vit@production", "there is no model 'vit'", "Run `modelreg list`."),
        ("resnet50:9", "there is no resnet50:9", "Run `modelreg list resnet50` to see its versions."),
        ("resnet50@sha256:" + "0" * 64, "there is no resnet50@sha256:" + "0" * 64, "Run `modelreg list resnet50`"),
        ("resnet50@prodution", "resnet50@prodution serves nothing", "Did you mean 'production'?"),
        ("resnet50@test", "resnet50@test serves nothing", "Run `modelreg promote resnet50:VERSION --to test`."),
    ],
)
def test_what_is_not_there_is_named_with_what_is_close(database: Database, text: str, message: str, hint: str) -> None:
    with database.write() as connection:
        version = add_version(connection)
        engine = add_engine(connection, version)
    activate(database, version, engine=engine)
    with database.read() as connection, pytest.raises(NotFoundError) as caught:
        versions.get_version(connection, parse_reference(text))
    assert str(caught.value) == message
    assert caught.value.hint().startswith(hint)


def test_listing_goes_newest_first_page_by_page(database: Database) -> None:
    with database.write() as connection:
        made = [add_version(connection, word=word) for word in range(7)]
        add_version(connection, model="other", word="x")
    with database.read() as connection:
        assert versions.list_versions(connection, model="resnet50") == made[::-1]
        first = versions.list_versions(connection, model="resnet50", limit=3)
        second = versions.list_versions(connection, model="resnet50", limit=3, before=first[-1].number)
        third = versions.list_versions(connection, model="resnet50", limit=3, before=second[-1].number)
        nothing = versions.list_versions(connection, model="resnet50", limit=3, before=1)
    assert [version.number for version in first + second + third] == [7, 6, 5, 4, 3, 2, 1]
    assert nothing == []


def test_listing_an_unknown_model_is_an_error(database: Database) -> None:
    with database.read() as connection, pytest.raises(NotFoundError, match="no model 'vit'"):
        versions.list_versions(connection, model="vit")


def test_models_are_summed_up_by_name(database: Database) -> None:
    with database.read() as connection:
        assert versions.list_models(connection) == []
    with database.write() as connection:
        made = [add_version(connection, model="z", word=word) for word in range(3)]
        add_version(connection, model="a")
        built = [add_engine(connection, version) for version in made]
    current, _ = activate(database, made[0], engine=built[0])
    activate(database, made[2], engine=built[2], current=current)
    with database.read() as connection:
        found = versions.list_models(connection)
    assert [(one.name, one.versions, one.newest, one.channels) for one in found] == [
        ("a", 1, 1, {}),
        ("z", 3, 3, {"production": (3, 2)}),
    ]


def test_no_query_of_a_listing_or_a_promotion_scans_a_large_table(database: Database) -> None:
    """Plans of the queries that run on large tables: an index search, never a scan of them."""
    wanted: dict[sa.Select[Any], dict[str, Any]] = {
        versions._ACTIVE_VERSIONS: {},
        statement_of(version_rows._NEWEST_FIRST): {"rows": 100},
        statement_of(version_rows._MORE_FILES_OF_PAGE): {"newest": 5},
        statement_of(version_rows._MORE_FILES): {},
        statement_of(version_rows._BY_SOURCE): {},
        statement_of(version_rows._BY_NUMBER): {},
        statement_of(version_rows._ACTIVE): {},
        statement_of(channel_states._STATE): {},
        statement_of(validations._NEWEST): {},
    }
    sorts = {versions._ACTIVE_VERSIONS, statement_of(version_rows._MORE_FILES_OF_PAGE)}  # few rows, or a page of them
    with database.read() as connection:
        for statement, parameters in wanted.items():
            names = statement.compile(dialect=connection.dialect).params
            texts = {"model", "model_name", "channel", "digest"}
            values = {name: parameters.get(name, "x" if name in texts else 1) for name in names}
            plan = explain(connection, statement, values)
            for table in ("version", "version_file", "activation", "operation", "engine", "validation"):
                assert f"SCAN {table}" not in plan.splitlines(), plan
                assert f"Seq Scan on {table} " not in plan, plan
            assert "TEMP B-TREE FOR ORDER BY" not in plan or statement in sorts, plan


def statement_of(kept: Statement) -> sa.Select[Any]:
    assert isinstance(kept.element, sa.Select)
    return kept.element


def test_the_newest_golden_set_is_the_one_added_last(database: Database) -> None:
    with database.write() as connection:
        version, other = add_version(connection), add_version(connection, word="other")
        assert golden_sets.newest_golden_set(connection, version_id=version.id) is None
        add_golden_set(connection, version, word="old")
        add_golden_set(connection, version, word="new", message="better samples")
        add_golden_set(connection, other, word="other")
        found = golden_sets.newest_golden_set(connection, version_id=version.id)
    assert found is not None
    assert (found.digest, found.samples, found.origin) == (digest_of("golden new"), 64, {"torch": "2.13", "seed": 0})
    assert (utc_now() - found.created_at).total_seconds() < 60


def test_adding_the_golden_set_that_counts_changes_nothing(database: Database) -> None:
    with database.write() as connection:
        version = add_version(connection)
        first = add_golden_set(connection, version, word="old")
    rows = row_counts(database)
    with database.write() as connection:
        assert add_golden_set(connection, version, word="old") == first
    assert row_counts(database) == rows


def test_replacing_a_golden_set_needs_a_message_and_is_an_event(database: Database) -> None:
    with database.write() as connection:
        version = add_version(connection)
        add_golden_set(connection, version, word="old")
    with pytest.raises(UsageError, match="has golden set") as raised, database.write() as connection:
        add_golden_set(connection, version, word="new")
    assert "--message" in raised.value.hint()
    for word in ("new", "old"):  # there and back again: the one named last counts
        with database.write() as connection:
            add_golden_set(connection, version, word=word, message=f"because {word}")
        with database.read() as connection:
            newest = golden_sets.newest_golden_set(connection, version_id=version.id)
            kind, details = connection.execute(
                sa.select(schema.event.c.kind, schema.event.c.details).order_by(schema.event.c.sequence.desc()).limit(1)
            ).one()
        assert newest is not None
        assert newest.digest == digest_of(f"golden {word}")
        assert kind == "golden.replaced"
        assert f"because {word}" in details
