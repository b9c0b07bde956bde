from modelreg.registry import validations
from modelreg.registry.database import Database
from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Precision, Verdict
from modelreg_testing.registry import (
    ACTOR,
    add_engine,
    add_validation,
    add_version,
    digest_of,
    make_gate,
    row_counts,
)


def test_a_validation_is_read_back_as_it_was_recorded(database: Database) -> None:
    gates = [
        make_gate(),
        GateResult(gate="finite", subject="y", outcome=GateOutcome.FAIL, measured=float("inf"), worst_samples=(3, 1)),
        GateResult(gate="off-opt", subject="", outcome=GateOutcome.SKIPPED, reason="no profile"),
    ]
    with database.write() as connection:
        engine = add_engine(connection, add_version(connection))
        made = validations.record_validation(
            connection,
            engine=engine,
            golden_digest=digest_of("golden"),
            policy_digest=digest_of("policy"),
            policy={"name": "int8"},
            verdict=Verdict.FAIL,
            gates=gates,
            report_digest=digest_of("report"),
            host={"gpu": "H200"},
            actor=ACTOR,
        )
    assert made.gates == tuple(gates)
    with database.read() as connection:
        assert validations.newest_validations(connection, version_id=engine.version_id) == {engine.id: made}


def test_the_newest_verdict_of_each_engine_counts(database: Database) -> None:
    with database.write() as connection:
        version = add_version(connection)
        first = add_engine(connection, version)
        second = add_engine(connection, version, precision=Precision.FP16)
        add_engine(connection, version, precision=Precision.INT8)
        other = add_version(connection, word="other")
        elsewhere = add_validation(connection, add_engine(connection, other))
        add_validation(connection, first, verdict=Verdict.FAIL)
        kept = add_validation(connection, second, verdict=Verdict.PASS)
        newest = add_validation(connection, first, verdict=Verdict.PASS)
    assert row_counts(database)["validation"] == 4
    with database.read() as connection:
        found = validations.newest_validations(connection, version_id=version.id)
        assert validations.newest_validations(connection, version_id=other.id) == {elsewhere.engine_id: elsewhere}
        assert validations.newest_validations(connection, version_id=99) == {}
    assert found == {first.id: newest, second.id: kept}
