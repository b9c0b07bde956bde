"""What `list`, `show`, `which`, `history`, `diff`, `policy`, `verify` and `doctor` print."""

from __future__ import annotations

import sqlite3

import pytest

from modelreg.registry.words import EngineStatus, Precision, Verdict
from modelreg_testing.cli import Shop, run_cli


@pytest.fixture
def stocked(shop: Shop) -> Shop:
    shop.add_version(word=1, precisions=(Precision.FP32, Precision.FP16, Precision.INT8))
    shop.add_version(word=2, verdict=Verdict.FAIL)
    shop.add_version(model="vgg", word=1, verdict=None)
    shop.cli("promote", "lenet:1", "--to", "production", "-m", "first")
    return shop


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_list_shows_models_with_what_is_active(stocked: Shop) -> None:
    assert lines_of(stocked.cli("list").out) == [
        ["MODEL", "VERSIONS", "NEWEST", "ACTIVE"],
        ["lenet", "2", "2", "production", "1"],
        ["vgg", "1", "1", "-"],
    ]
    models = stocked.cli("list", "--json").document["models"]
    assert models[0]["channels"] == {"production": {"version": 1, "generation": 1}}


def test_an_empty_registry_says_what_to_do_on_stderr(shop: Shop) -> None:
    result = shop.cli("list")
    assert result.out == ""
    assert "modelreg register" in result.err


def test_list_pages_through_versions_newest_first(shop: Shop) -> None:
    for word in range(5):
        shop.add_version(word=word, verdict=None)
    first = shop.cli("list", "lenet", "--limit", 2, "--json").document
    assert [row["version"] for row in first["versions"]] == [5, 4]
    assert first["next_before"] == 4
    rest = shop.cli("list", "lenet", "--before", 4, "--json").document
    assert [row["version"] for row in rest["versions"]] == [3, 2, 1]
    assert rest["next_before"] is None
    assert "--before 4" in shop.cli("list", "lenet", "--limit", 2).err
    assert shop.cli("list", "lenet", "--limit", 5, "--json").document["next_before"] is None


def test_list_of_a_model_marks_the_active_version(stocked: Shop) -> None:
    rows = stocked.cli("list", "lenet").out.splitlines()
    assert "production" in rows[2]
    assert "production" not in rows[1]
    assert stocked.cli("list", "lenet", "--json").document["versions"][1]["channels"] == ["production"]


def test_show_of_a_version_has_source_signature_engines_and_channels(stocked: Shop) -> None:
    out = stocked.cli("show", "lenet:1").out
    for fact in (
        "image float32[N,1,28,28]",
        "logits float32[N,10]",
        "ai.onnx 17; IR 8",
        "Conv 2, Gemm 3",
        "64 samples",
        "@production  active since",
        "             serves engine 3 (cpu int8)",
        "run=1",
    ):
        assert fact in out
    assert max(len(line) for line in out.splitlines()) <= 90
    document = stocked.cli("show", "lenet:1", "--json").document
    assert [engine["precision"] for engine in document["engines"]] == ["fp32", "fp16", "int8"]
    assert document["engines"][0]["validation"]["verdict"] == "pass"
    assert document["channels"][0]["message"] == "first"
    assert [engine["served_by"] for engine in document["engines"]] == [[], [], ["production"]]
    assert stocked.cli("show", "lenet@production", "--json").document["version"] == 1
    digest = document["source"]["sha256"]
    assert stocked.cli("show", f"lenet@sha256:{digest}", "--json").document["version"] == 1
    assert stocked.cli("show", f"lenet@sha256:{digest[:12]}", "--json").document["version"] == 1


def test_show_names_the_gate_that_failed_and_verbose_shows_them_all(stocked: Shop) -> None:
    out = stocked.cli("show", "lenet:2").out
    assert "max_relative_error of y: 0.2, limit <= 0.001" in out
    assert "MEASURED" not in out
    assert "MEASURED" in stocked.cli("show", "lenet:2", "-v").out


def test_show_of_a_version_without_engines_says_how_to_build_one(shop: Shop) -> None:
    shop.add_version(precisions=())
    assert "modelreg build lenet:1" in shop.cli("show", "lenet:1").out


def test_show_of_a_model_has_its_channels(stocked: Shop) -> None:
    out = stocked.cli("show", "lenet").out
    assert "newest version 2" in out
    assert ["production", "1", "1", "cpu", "int8"] in [row[:5] for row in lines_of(out)]
    document = stocked.cli("show", "lenet", "--json").document
    assert document["channels"][0]["engines"][0]["precision"] == "int8"
    assert "no channel serves it" in stocked.cli("show", "vgg").out


def test_which_names_the_plan_and_path_only_prints_nothing_else(stocked: Shop) -> None:
    path = stocked.cli("which", "lenet@production", "--path-only").out
    assert path.endswith("/cpu/model.onnx\n")
    assert path.strip() in stocked.cli("which", "lenet@production").out
    document = stocked.cli("which", "models:/lenet@production", "--json").document
    assert document["path"] == path.strip()
    assert document["engines"][0]["chosen"] is True
    assert document["engines"][0]["reason"] == "runs on cpu"


@pytest.mark.parametrize("options", [(), ("--path-only",), ("--json",)])
def test_which_exits_with_1_where_no_engine_of_the_release_runs(
    stocked: Shop, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelreg.runtime.host.find_versions", dict)
    result = stocked.cli("which", "lenet@production", *options)
    assert result.code == 1
    assert "no engine of lenet@production runs on this host" in result.err
    if options == ("--json",):
        assert result.document["path"] is None
        assert result.document["engines"][0]["reason"] == "onnxruntime is not installed here"
    elif options:
        assert result.out == ""
    else:
        assert "onnxruntime is not installed here" in result.out


def test_history_of_a_model_shows_all_its_channels_and_marks_what_is_active(stocked: Shop) -> None:
    stocked.cli("promote", "lenet:1", "--to", "staging", "--precision", "fp32")
    rows = lines_of(stocked.cli("history", "lenet").out)
    assert [row[:2] for row in rows[1:]] == [["*", "production"], ["*", "staging"]]
    assert [row["channel"] for row in stocked.cli("history", "lenet@staging", "--json").document["generations"]] == [
        "staging"
    ]


def test_history_of_a_model_that_was_never_promoted_says_so(shop: Shop) -> None:
    shop.add_version()
    result = shop.cli("history", "lenet")
    assert (result.code, result.out) == (0, "")
    assert "nothing of lenet was promoted yet" in result.err
    shop.cli("promote", "lenet:1", "--to", "production")
    assert "no generation before 1" in shop.cli("history", "lenet", "--before", 1).err


def test_history_is_one_line_a_generation_however_long_its_message(stocked: Shop) -> None:
    why = "a message that is longer than any screen is wide, " * 4
    stocked.cli("promote", "lenet:1", "--to", "staging", "-m", why)
    lines = stocked.cli("history", "lenet@staging").out.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith(why.rstrip())


def test_verbose_shows_whole_digests_and_who(stocked: Shop) -> None:
    source = stocked.cli("show", "lenet:1", "--json").document["source"]["sha256"]
    release = stocked.cli("which", "lenet@production", "--json").document["release"]
    for words, fact in (
        (("list", "lenet"), source),
        (("list", "lenet"), "run=1"),
        (("list",), "production 1 (generation 1)"),
        (("which", "lenet@production"), f"release {release}"),
        (("which", "lenet@production"), "by ada@lab: first"),
        (("history", "lenet"), release),
        (("diff", "lenet:1", "lenet:2"), source),
        (("doctor",), "generation 1 in both"),
    ):
        said = stocked.cli(*words, "-v").out
        assert fact in said, words
        assert words[0] == "doctor" or fact not in stocked.cli(*words).out.replace(f"/{release}/", ""), words


def test_a_bare_name_says_which_version_it_means(stocked: Shop) -> None:
    for words in (("verify", "lenet"), ("diff", "lenet", "lenet:1"), ("validate", "lenet", "--dry-run")):
        assert "lenet means lenet:2, the newest\n" in stocked.cli(*words).err, words
    assert "means" not in stocked.cli("verify", "lenet:1").err


def test_the_log_of_a_build_can_be_read(stocked: Shop) -> None:
    assert stocked.cli("show", "lenet:1", "--log", 2).out == "log lenet:1 cpu fp16\n"
    assert stocked.cli("show", "lenet", "--log", 4).out == "log lenet:2 cpu fp32\n"
    assert stocked.cli("show", "lenet:1", "--log", 2, "--json").document["log"] == "log lenet:1 cpu fp16"
    for words, fact in (
        (("show", "lenet:1", "--log", 4), "engine 4 is not one of lenet:1"),
        (("show", "vgg", "--log", 4), "It is one of lenet:2."),
        (("show", "lenet:1", "--log", 99), "there is no engine 99"),
    ):
        refused = stocked.cli(*words)
        assert refused.code == 1
        assert fact in refused.err, words


def test_numbers_of_a_diff_are_numbers_for_programs(stocked: Shop) -> None:
    stocked.cli("promote", "lenet:2", "--to", "staging", "--override-gates", "-m", "to compare")
    rows = stocked.cli("diff", "lenet:1", "lenet:2", "--json").document["differences"]
    differences = {row["field"]: (row["left"], row["right"]) for row in rows}
    size = differences["cpu fp16 onnxruntime size"]
    assert size[0] > 0
    assert size[1] is None
    gate = next(value for field, value in differences.items() if "fp32 onnxruntime gate" in field)
    assert gate[1] == {"outcome": "fail", "measured": 0.2}


def test_doctor_has_one_row_for_a_channel_that_is_well_and_sums_up(stocked: Shop) -> None:
    out = stocked.cli("doctor").out
    assert out.count("lenet@production") == 1
    assert out.splitlines()[-1].startswith("all is well: ")
    assert out.splitlines()[-1].endswith(", 1 channel")
    assert stocked.cli("doctor", "-v").out.count("lenet@production") == 2
    release = stocked.cli("which", "lenet@production", "--json").document["release"]
    plan = stocked.path / "store" / "releases" / release / "cpu" / "model.onnx"
    plan.chmod(0o644)
    plan.write_bytes(b"x" * plan.stat().st_size)
    ill = stocked.cli("doctor")
    assert ill.code == 6
    assert ill.out.count("lenet@production") == 2
    assert "not all is well" in ill.out
    assert "1 damage" in ill.out


def test_history_pages(stocked: Shop) -> None:
    stocked.cli("promote", "lenet:1", "--to", "production", "--precision", "fp32")
    stocked.cli("promote", "lenet:1", "--to", "production", "--precision", "fp16")
    newest = stocked.cli("history", "lenet", "--limit", 1, "--json").document["generations"]
    assert [row["generation"] for row in newest] == [3]
    older = stocked.cli("history", "lenet", "--before", 3, "--json").document["generations"]
    assert [row["generation"] for row in older] == [2, 1]


def test_diff_of_two_versions_names_what_differs(stocked: Shop) -> None:
    fields = [row["field"] for row in stocked.cli("diff", "lenet:1", "lenet:2", "--json").document["differences"]]
    assert "source" in fields
    assert "golden set" in fields
    assert "cpu fp32 onnxruntime verdict" in fields
    assert not any(field.startswith("opset") for field in fields)
    out = stocked.cli("diff", "lenet:1", "lenet:2").out
    assert "lenet:2" in out.splitlines()[0]
    assert "cpu fp16 onnxruntime plan" in out
    assert "cpu fp16 onnxruntime gate" not in out
    assert stocked.cli("diff", "lenet:1", "lenet@production").out == "lenet:1 and lenet@production do not differ\n"


def test_diff_of_two_channels_compares_what_they_serve(stocked: Shop) -> None:
    stocked.cli("promote", "lenet:1", "--to", "staging", "--precision", "fp32")
    differences = stocked.cli("diff", "lenet@production", "lenet@staging", "--json").document["differences"]
    assert {"field": "cpu precision", "left": "int8", "right": "fp32"} in differences
    missing = stocked.cli("diff", "lenet@production", "lenet@qa")
    assert missing.code == 1
    assert "lenet@qa has no active release" in missing.err


def test_policy_show_works_outside_a_registry_and_inside_with_its_changes(shop: Shop) -> None:
    shop.add_version(precisions=())
    assert "accuracy_drop" in run_cli("policy", "show", "fp16").out
    assert ["accuracy_drop", "task", "<=", "0.01", "shipped"] in lines_of(shop.cli("policy", "show", "int8").out)
    shipped = shop.cli("policy", "show", "int8", "--json").document
    folder = shop.path / "policies" / "lenet"
    folder.mkdir(parents=True)
    (folder / "int8.toml").write_text('[[rules]]\nmetric = "accuracy_drop"\nlimit = 0.002\n')
    assert shop.cli("policy", "show", "int8", "--json").document["digest"] == shipped["digest"]
    changed = shop.cli("policy", "show", "int8", "--model", "lenet")
    assert ["accuracy_drop", "task", "<=", "0.002", str(folder / "int8.toml")] in lines_of(changed.out)
    assert run_cli("policy", "show", "int8", home=shop.path / "nowhere").code == 1


def test_verify_counts_what_it_read_and_checks_the_events(stocked: Shop) -> None:
    whole = stocked.cli("verify", "--events", "--json")
    assert whole.code == 0
    assert whole.document["damages"] == []
    assert whole.document["releases"] == whole.document["pointers"] == 1
    assert whole.document["events"] > 0
    assert stocked.cli("verify", "--json").document["events"] is None
    assert "nothing damaged" in stocked.cli("verify", "lenet:1").out


def test_verify_finds_an_event_that_was_changed_with_exit_6(stocked: Shop) -> None:
    with sqlite3.connect(stocked.database_path) as connection:
        connection.execute("UPDATE event SET actor = 'eve' WHERE sequence = 2")
    connection.close()
    assert stocked.cli("verify").code == 0
    found = stocked.cli("verify", "--events")
    assert found.code == 6
    assert "event 2" in found.out
    assert "1 thing is damaged" in found.err
    assert stocked.cli("doctor").code == 6


def test_doctor_says_when_all_is_well_and_when_a_blob_is_gone(stocked: Shop) -> None:
    well = stocked.cli("doctor", "--json")
    assert well.code == 0
    assert {finding["level"] for finding in well.document["findings"]} == {"ok"}
    digest = stocked.cli("show", "lenet:2", "--json").document["engines"][0]["plan"]
    next((stocked.path / "store" / "blobs").rglob(digest)).unlink()
    found = stocked.cli("doctor")
    assert found.code == 6
    assert digest[:12] in found.out
    assert "-> " in found.out


def test_doctor_without_a_database_says_what_still_works(stocked: Shop) -> None:
    stocked.database_path.unlink()
    found = stocked.cli("doctor")
    assert found.code == 1
    assert "1 problem needs a person" in found.err
    assert "`which`, `pull` and `rollback` work from the store" in found.out


def test_doctor_removes_leftovers_only_when_told(stocked: Shop) -> None:
    before = stocked.cli("doctor", "--fix", "--dry-run", "--json").document
    assert before == stocked.cli("doctor", "--json").document
    assert stocked.cli("doctor", "--fix").code == 0


def test_doctor_counts_the_rows_that_it_shows(stocked: Shop) -> None:
    for words in ((), ("-v",)):
        told = stocked.cli("doctor", *words).out.splitlines()
        rows = told[1 : told.index("")]
        assert f": {len(rows)} checks (" in told[-1]


@pytest.mark.parametrize(
    ("number", "fact", "hint"),
    [
        (999, "there is no engine 999", "lists engines"),
        (4, "engine 4 is not one of lenet:1", "It is one of lenet:2."),
        (6, "engine 6 (sm_89 fp32) was not built: the worker crashed", "modelreg show lenet:1 --log 6"),
    ],
)
def test_an_engine_that_cannot_be_validated_or_reported_is_named(
    stocked: Shop, number: int, fact: str, hint: str
) -> None:
    stocked.add_engine(target="sm_89", status=EngineStatus.FAILED)
    for command in ("validate", "report"):
        refused = stocked.cli(command, "lenet:1", "--engine", number)
        assert refused.code == 1
        assert refused.err.startswith(f"modelreg: error: {fact}\n")
        assert hint in refused.err


def test_engines_of_another_kind_than_is_asked_for_are_named_by_validate(stocked: Shop) -> None:
    refused = stocked.cli("validate", "lenet:1", "--target", "sm_89", "--precision", "int8")
    assert "lenet:1 has no built int8 engine for sm_89\n" in refused.err
    assert "It has cpu fp32, cpu fp16, cpu int8" in refused.err
