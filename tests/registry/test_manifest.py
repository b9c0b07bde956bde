import json
from dataclasses import replace

import pytest

from modelreg.registry.errors import IntegrityError
from modelreg.registry.manifest import RequiredPlugin, make_manifest, parse_manifest
from modelreg.registry.words import Precision
from modelreg_testing.records import TRT, digest_of, make_engine, make_version


def test_a_manifest_reads_back_as_it_was_written() -> None:
    manifest = make_manifest(
        make_version(), {"sm_90": make_engine(2, Precision.FP16, target="sm_90", toolchain=TRT), "cpu": make_engine(1)}
    )
    assert parse_manifest(manifest.to_bytes(), where="x") == manifest
    assert manifest.targets == ("cpu", "sm_90")
    assert [file.path for file in manifest.files] == ["cpu/model.onnx", "sm_90/model.onnx"]
    assert manifest.engines[1].plan.digest == digest_of(2)


def test_the_same_engines_give_the_same_bytes() -> None:
    first = make_manifest(make_version(), {"a": make_engine(1), "b": make_engine(2)})
    second = make_manifest(make_version(), {"b": make_engine(2), "a": make_engine(1)})
    assert first.to_bytes() == second.to_bytes()


def test_targets_are_read_by_number_and_written_by_name_as_they_always_were() -> None:
    manifest = make_manifest(make_version(), {name: make_engine(1, target=name) for name in ("sm_89", "sm_120", "cpu")})
    assert manifest.targets == tuple(engine.target for engine in manifest.listed) == ("cpu", "sm_89", "sm_120")
    written = json.loads(manifest.to_bytes())["engines"]
    assert [engine["target"] for engine in written] == ["cpu", "sm_120", "sm_89"]


def test_another_plan_gives_other_bytes() -> None:
    first = make_manifest(make_version(), {"cpu": make_engine(1)})
    assert first.to_bytes() != make_manifest(make_version(), {"cpu": make_engine(2)}).to_bytes()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="release abc"):
        parse_manifest(data, where="abc")


def test_a_newer_format_is_refused_with_the_way_out() -> None:
    body = json.loads(make_manifest(make_version(), {"cpu": make_engine(1)}).to_bytes())
    body["format"] = 2
    with pytest.raises(IntegrityError, match="format 2") as raised:
        parse_manifest(json.dumps(body).encode(), where="abc")
    assert "upgrade" in raised.value.hint()


def test_what_decides_where_an_engine_loads_comes_from_its_recipe_and_reads_back() -> None:
    plugin = RequiredPlugin(name="libscan.so", digest=digest_of(9))
    build = {
        "hardware_compatibility": "AMPERE_PLUS",
        "plugins": [{"name": "libscan.so", "digest": digest_of(9)}],
        "plan_targets": ["sm_86", "sm_89"],
    }
    engine = replace(
        make_engine(1, target="sm_86", toolchain=replace(TRT, details={"cuda": "12"})),
        recipe={"flags": ["FP16", "VERSION_COMPATIBLE"], "build": build},
    )
    manifest = make_manifest(make_version(), {"sm_86": engine})
    (released,) = manifest.engines
    assert (released.hardware_compatibility, released.version_compatible) == ("AMPERE_PLUS", True)
    assert (released.plugins, released.plan_targets, released.cuda) == ((plugin,), ("sm_86", "sm_89"), "12")
    assert parse_manifest(manifest.to_bytes(), where="x") == manifest


def test_a_release_without_anything_unusual_keeps_the_digest_it_had_before_these_fields() -> None:
    manifest = make_manifest(make_version(), {"cpu": make_engine(1), "sm_90": make_engine(2, toolchain=TRT)})
    for body in json.loads(manifest.to_bytes())["engines"]:
        assert sorted(body) == [
            *("backend", "backend_version", "cuda", "driver", "files", "gpu"),
            *("plan", "precision", "realised", "recipe", "target"),
        ]


def test_the_cuda_is_the_backends_and_not_the_newest_of_the_driver_it_was_built_with() -> None:
    built = make_engine(1, target="sm_90", toolchain=replace(TRT, details={"cuda": "12"}))
    built = replace(built, target=replace(built.target, cuda="13.0", driver="580.1"))
    (released,) = make_manifest(make_version(), {"sm_90": built}).engines
    assert (released.cuda, released.driver) == ("12", "580.1")
