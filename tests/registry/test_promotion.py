from dataclasses import replace

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.errors import GateFailedError, NotFoundError
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.promotion import (
    EngineStanding,
    PromotionPlan,
    choose_rollback_generation,
    judge_engine,
    override_gates,
    plan_promotion,
    require_complete,
    required_targets,
)
from modelreg.registry.records import EngineRecord, ValidationRecord
from modelreg.registry.words import ActivationKind, EngineStatus, GateOutcome, Precision, Verdict
from modelreg_testing.records import GOLDEN, make_engine, make_gate, make_validation, make_version

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def prefer_int8(target: str) -> tuple[Precision, ...]:
    return (INT8, FP32, FP16) if target == "cpu" else (FP16, INT8)


def standing(engine: EngineRecord, verdict: Verdict | None = Verdict.PASS) -> EngineStanding:
    return EngineStanding(engine=engine, validation=None if verdict is None else make_validation(engine, verdict))


def plan(
    *standings: EngineStanding, targets: tuple[str, ...] = ("cpu",), precision: Precision | None = None
) -> PromotionPlan:
    return plan_promotion(
        make_version(),
        standings,
        targets=targets,
        golden_digest=GOLDEN,
        preference=prefer_int8,
        precision=precision,
    )


@pytest.mark.parametrize(
    ("explicit", "configured", "active", "built", "expected"),
    [
        (["sm_90"], ["cpu"], ["cpu"], ["cpu"], ("sm_90",)),
        ([], ["sm_90", "cpu"], [], ["cpu"], ("cpu", "sm_90")),
        ([], [], ["sm_90"], ["cpu"], ("cpu", "sm_90")),
        ([], [], [], ["cpu", "cpu"], ("cpu",)),
        ([], [], ["sm_120"], ["sm_89", "cpu"], ("cpu", "sm_89", "sm_120")),
        (["sm_120", "sm_89"], [], [], [], ("sm_89", "sm_120")),
        ([], [], [], [], ()),
    ],
)
def test_required_targets(
    explicit: list[str], configured: list[str], active: list[str], built: list[str], expected: tuple[str, ...]
) -> None:
    assert required_targets(explicit=explicit, configured=configured, active=active, built=built) == expected


@pytest.mark.parametrize(
    ("active", "expected"), [([], ("sm_89",)), (["cpu"], ("cpu", "sm_89"))], ids=["a first release", "one that serves"]
)
def test_named_engines_are_promoted_for_their_targets_and_none_that_is_served_is_dropped(
    active: list[str], expected: tuple[str, ...]
) -> None:
    built = ["cpu", "sm_89", "sm_120"]
    assert required_targets(explicit=[], configured=[], active=active, built=built, named=["sm_89"]) == expected


def test_the_preferred_precision_among_those_that_pass_is_chosen() -> None:
    engines = plan(standing(make_engine(1)), standing(make_engine(2, FP16)), standing(make_engine(3, INT8))).engines
    assert engines["cpu"].precision is INT8


def test_a_preferred_engine_that_fails_gives_way_to_the_next() -> None:
    made = plan(standing(make_engine(1)), standing(make_engine(3, INT8), Verdict.FAIL))
    assert made.engines["cpu"].precision is FP32
    assert made.missing == ()
    assert [candidate.reason for candidate in made.choices[0].candidates] == [
        "validation fail: cosine of logits",
        "passes its gates",
    ]


def test_the_newest_engine_of_a_precision_goes_first() -> None:
    assert plan(standing(make_engine(1)), standing(make_engine(5))).engines["cpu"].id == 5


def test_a_precision_may_be_asked_for() -> None:
    made = plan(standing(make_engine(1)), standing(make_engine(3, INT8)), precision=FP32)
    assert made.engines["cpu"].precision is FP32
    assert "cpu has no engine" in plan(standing(make_engine(1)), precision=INT8).missing[0]


def test_a_precision_outside_the_preference_comes_last_but_counts() -> None:
    assert plan(standing(make_engine(1, Precision.BF16))).engines["cpu"].precision is Precision.BF16


def test_every_target_must_be_served_or_none_is() -> None:
    made = plan(standing(make_engine(1)), targets=("cpu", "sm_90"))
    assert made.missing == ("sm_90 has no engine",)
    with pytest.raises(GateFailedError, match="sm_90 has no engine") as raised:
        require_complete(made)
    assert raised.value.exit_code == 3
    assert raised.value.details() == {"missing": ["sm_90 has no engine"]}


def failed_build(target: str = "cpu", precision: Precision = FP32) -> EngineStanding:
    engine = make_engine(7, precision, target=target, status=EngineStatus.FAILED, error="no kernel")
    return standing(engine, None)


@pytest.mark.parametrize(
    ("made", "hint"),
    [
        (plan(targets=()), "Run `modelreg build lenet:1`, then `modelreg validate lenet:1`."),
        (
            plan(standing(make_engine(1)), targets=("cpu", "sm_90")),
            "Run `modelreg build lenet:1 --target sm_90`, then `modelreg validate lenet:1`.",
        ),
        (
            plan(standing(make_engine(1)), precision=INT8),
            "Run `modelreg build lenet:1 --target cpu --precision int8`, then `modelreg validate lenet:1`.",
        ),
        (
            plan(failed_build()),
            "Run `modelreg build lenet:1 --target cpu`, then `modelreg validate lenet:1`."
            " `modelreg show lenet:1 --log 7` prints why a build failed.",
        ),
        (
            plan(standing(make_engine(1), None), failed_build(precision=INT8)),
            "Run `modelreg validate lenet:1`, or go over the gates with --override-gates --message WHY.",
        ),
        (
            plan(standing(make_engine(1), Verdict.FAIL)),
            "See `modelreg show lenet:1`, and build another engine,"
            " or go over the gates with --override-gates --message WHY.",
        ),
    ],
)
def test_a_refusal_says_what_is_really_missing(made: PromotionPlan, hint: str) -> None:
    with pytest.raises(GateFailedError) as raised:
        require_complete(made)
    assert raised.value.hint() == hint


def test_what_was_wanted_more_and_does_not_pass_is_named() -> None:
    assert plan(standing(make_engine(1)), standing(make_engine(3, INT8))).passed_over == ()
    made = plan(standing(make_engine(1)), standing(make_engine(2, FP16)), standing(make_engine(3, INT8), Verdict.FAIL))
    assert made.passed_over == ("cpu int8: validation fail: cosine of logits",)
    assert plan(standing(make_engine(3, INT8), Verdict.FAIL)).passed_over == ()


def test_engines_that_do_not_pass_for_the_same_reason_are_named_together() -> None:
    made = plan(
        standing(make_engine(1), None),
        standing(make_engine(2, INT8), None),
        standing(make_engine(4, INT8), None),
        standing(make_engine(3, INT8), Verdict.FAIL),
    )
    assert made.missing == (
        "cpu has no engine that passes (int8 engines 4, 2: not validated;"
        " int8 engine 3: validation fail: cosine of logits; fp32 engine 1: not validated)",
    )


def test_a_named_engine_is_the_only_one_considered_for_its_target() -> None:
    named = make_engine(1)
    standings = [standing(named), standing(make_engine(5)), standing(make_engine(6, FP16, target="sm_90"))]
    made = plan_promotion(
        make_version(),
        standings,
        targets=("cpu", "sm_90"),
        golden_digest=GOLDEN,
        preference=prefer_int8,
        named={"cpu": named},
    )
    assert {target: engine.id for target, engine in made.engines.items()} == {"cpu": 1, "sm_90": 6}
    assert made.named == ("cpu",)


def test_a_named_engine_that_waits_for_its_verdict_is_validated_by_its_id() -> None:
    named = make_engine(1)
    made = plan_promotion(
        make_version(),
        [standing(named, None), standing(make_engine(5))],
        targets=("cpu",),
        golden_digest=GOLDEN,
        preference=prefer_int8,
        named={"cpu": named},
    )
    with pytest.raises(GateFailedError, match="fp32 engine 1: not validated") as raised:
        require_complete(made)
    assert raised.value.hint().startswith("Run `modelreg validate lenet:1 --engine 1`")


def test_nothing_built_is_nothing_to_promote() -> None:
    with pytest.raises(GateFailedError, match="no engine is built"):
        require_complete(plan(targets=()))


@pytest.mark.parametrize(
    ("engine", "validation", "reason"),
    [
        (make_engine(1, status=EngineStatus.FAILED, error="no kernel"), None, "build failed: no kernel"),
        (make_engine(1), None, "not validated"),
        (make_engine(1), make_validation(make_engine(1), golden="0" * 64), "validated against another golden set"),
        (make_engine(1), make_validation(make_engine(1), Verdict.ERROR), "validation error: cosine of logits"),
        (make_engine(1), make_validation(make_engine(1), Verdict.FAIL, gates=()), "validation fail: no gate ran"),
        (
            make_engine(1),
            make_validation(
                make_engine(1),
                Verdict.FAIL,
                gates=tuple(make_gate(GateOutcome.FAIL, gate=f"g{n}") for n in range(5)),
            ),
            "validation fail: g0 of logits, g1 of logits, g2 of logits and 2 more",
        ),
    ],
)
def test_why_an_engine_may_not_be_activated(
    engine: EngineRecord, validation: ValidationRecord | None, reason: str
) -> None:
    candidate = judge_engine(EngineStanding(engine=engine, validation=validation), golden_digest=GOLDEN)
    assert (candidate.usable, candidate.reason) == (False, reason)


def refuse_int8(engine: EngineRecord, _validation: ValidationRecord) -> str:
    return "judged too kindly" if engine.precision is INT8 else ""


def test_a_pass_that_is_not_accepted_is_stale_and_gives_way_to_the_next() -> None:
    standings = [standing(make_engine(1)), standing(make_engine(2, INT8))]
    made = plan_promotion(
        make_version(), standings, targets=["cpu"], golden_digest=GOLDEN, preference=prefer_int8, accepts=refuse_int8
    )
    assert made.engines["cpu"].precision is FP32
    int8, fp32 = made.choices[0].candidates
    assert (int8.usable, int8.is_stale, int8.reason) == (False, True, "judged too kindly")
    assert (fp32.usable, fp32.is_stale) == (True, False)


def test_only_a_pass_can_be_refused_acceptance() -> None:
    failed = judge_engine(standing(make_engine(1, INT8), Verdict.FAIL), golden_digest=GOLDEN, accepts=refuse_int8)
    assert not failed.is_stale
    assert failed.reason == "validation fail: cosine of logits"


def test_a_verdict_against_another_golden_set_is_stale() -> None:
    assert judge_engine(standing(make_engine(1), Verdict.FAIL), golden_digest="0" * 64).is_stale


def test_a_pass_against_no_golden_set_is_no_pass() -> None:
    candidate = judge_engine(standing(make_engine(1)), golden_digest=None)
    assert not candidate.usable


def test_an_override_fills_what_is_missing_and_says_what_it_went_over() -> None:
    made = override_gates(
        plan(
            standing(make_engine(1), Verdict.FAIL),
            standing(make_engine(2, FP16, target="sm_90")),
            targets=("cpu", "sm_90"),
        )
    )
    assert made.missing == ()
    assert made.engines["cpu"].id == 1
    assert made.overridden == ("cpu fp32: validation fail: cosine of logits",)


@pytest.mark.parametrize(
    "standings", [(), (standing(make_engine(1, status=EngineStatus.FAILED, error="crashed"), None),)]
)
def test_an_override_cannot_activate_what_was_not_built(standings: tuple[EngineStanding, ...]) -> None:
    with pytest.raises(GateFailedError) as raised:
        override_gates(plan(*standings))
    assert "modelreg build" in raised.value.hint()


def test_an_override_without_any_target_is_refused() -> None:
    with pytest.raises(GateFailedError):
        override_gates(plan(targets=()))


def pointer(generation: int, rolls_back_to: int | None) -> Pointer:
    made = next_pointer(
        None,
        model="lenet",
        channel="production",
        release="a" * 64,
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=rolls_back_to,
        txn="t",
        actor="ada",
        message="",
        at=utc_now(),
    )

    return made._replace(generation=generation)


def test_a_rollback_goes_where_the_pointer_says() -> None:
    assert choose_rollback_generation(pointer(5, 2), to_generation=None, place="lenet@production") == 2


@pytest.mark.parametrize(
    ("current", "to_generation", "message"),
    [
        (pointer(1, None), None, "no earlier release than version 1"),
        (pointer(3, 2), 3, "generation 3 cannot be rolled back to"),
        (pointer(3, 2), 9, "generation 9 cannot be rolled back to"),
        (pointer(3, 2), 0, "generation 0 cannot be rolled back to"),
    ],
)
def test_a_rollback_that_leads_nowhere_is_refused(current: Pointer, to_generation: int | None, message: str) -> None:
    with pytest.raises(NotFoundError, match=message) as raised:
        choose_rollback_generation(current, to_generation=to_generation, place="lenet@production")
    assert raised.value.exit_code == 1
    assert "lenet@production" in str(raised.value)
    assert "`modelreg history lenet@production`" in raised.value.hint()


def test_an_earlier_generation_may_be_named() -> None:
    assert choose_rollback_generation(pointer(5, 2), to_generation=3, place="lenet@production") == 3


def test_a_refusal_names_the_targets_that_could_be_promoted_alone() -> None:
    half = plan(standing(make_engine(1)), standing(make_engine(2, target="sm_86"), None), targets=("cpu", "sm_86"))
    with pytest.raises(GateFailedError) as caught:
        require_complete(half)
    assert "promote the rest alone with --target cpu" in caught.value.hint()


def test_a_long_error_of_a_build_is_cut_where_it_is_one_reason_of_many() -> None:
    failed = make_engine(1, status=EngineStatus.FAILED, error="Myelin\n " + "x" * 500)
    reason = judge_engine(standing(failed, None), golden_digest=GOLDEN).reason
    assert reason.startswith("build failed: Myelin xxx")
    assert reason.endswith("…")
    assert len(reason) == len("build failed: ") + 120


def test_an_engine_whose_plan_was_swept_is_not_activated_even_over_its_gates() -> None:
    swept = replace(make_engine(1), is_swept=True)
    made = plan(standing(swept))
    assert made.missing == ("cpu has no engine that passes (fp32 engine 1: its plan was removed by gc)",)
    with pytest.raises(GateFailedError) as refusal:
        override_gates(made)
    assert "modelreg build" in refusal.value.hint()
    assert "--log" not in refusal.value.hint()  # its build did not fail
