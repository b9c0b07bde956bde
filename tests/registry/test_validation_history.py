from __future__ import annotations

from pathlib import Path

from modelreg.registry.validation_history import PastVerdict, list_past_verdicts
from modelreg.registry.words import Backend, Precision, Verdict
from modelreg_testing.registry import add_engine, add_validation, add_version, make_database


def test_the_newest_verdict_of_each_engine_comes_with_the_oldest_version_first(tmp_path: Path) -> None:
    with make_database(tmp_path) as database, database.write() as connection:
        for word in range(3):
            version = add_version(connection, word=word)
            engine = add_engine(connection, version)
            add_validation(connection, engine, verdict=Verdict.FAIL)
            add_validation(connection, engine)
            add_validation(connection, add_engine(connection, version, precision=Precision.INT8))
        other = add_version(connection, model="lenet", word="lenet")
        add_validation(connection, add_engine(connection, other))

        def past(up_to: int, versions: int) -> list[PastVerdict]:
            return list_past_verdicts(connection, model="resnet50", up_to=up_to, versions=versions)

        found = past(3, 20)
        assert [(each.version, each.precision, each.verdict) for each in found] == [
            (number, precision, Verdict.PASS) for number in (1, 2, 3) for precision in (Precision.FP32, Precision.INT8)
        ]
        assert {each.version for each in past(2, 20)} == {1, 2}
        assert {each.version for each in past(3, 1)} == {3}
        assert (found[0].target, found[0].backend, len(found[0].gates)) == ("cpu", Backend.ONNXRUNTIME, 1)
        assert list_past_verdicts(connection, model="nobody", up_to=9, versions=9) == []
