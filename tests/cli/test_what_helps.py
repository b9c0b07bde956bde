"""What a `validate` that failed says to do next."""

from __future__ import annotations

from modelreg.cli.validate import say_what_helps


def test_an_engine_of_a_low_precision_is_looked_into_and_repaired() -> None:
    said = say_what_helps("lenet:1", ["int8"])
    assert "`modelreg validate lenet:1 --precision int8 --layers`" in said
    assert "`modelreg repair lenet:1 --precision int8 --calibration FILE`" in said
    assert "`modelreg repair lenet:1 --precision fp16`" in say_what_helps("lenet:1", ["fp16", "int8"])


def test_where_nothing_failed_but_could_not_be_run_nobody_is_blamed() -> None:
    said = say_what_helps("lenet:1", [])
    assert said.startswith("No gate failed: what could not be run is said above.")
    assert "repair" not in said


def test_where_fp32_fails_nothing_is_to_be_repaired() -> None:
    said = say_what_helps("lenet:1", ["int8", "fp32"])
    assert "compare the golden set with the export" in said
    assert "repair" not in said
