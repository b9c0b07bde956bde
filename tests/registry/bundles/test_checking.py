"""Bundles that somebody made by hand: refused before anything is written, cheaply, and with the reason."""

from __future__ import annotations

import gzip
import io
import json
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from modelreg.registry import engines, golden_sets
from modelreg.registry.blobs import BlobRecord, record_blob
from modelreg.registry.bundles import archive
from modelreg.registry.bundles.archive import ArchiveWriter, header
from modelreg.registry.bundles.checking import CheckedBundle, check_bundle
from modelreg.registry.bundles.collecting import collect
from modelreg.registry.bundles.listing import LISTING_NAME, RECORDS_NAME, Listing, blob_name, make_listing
from modelreg.registry.bundles.writing import write_bundle
from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import canonical_json, json_digest, sha256_hex
from modelreg.registry.errors import IntegrityError, UsageError
from modelreg.registry.references import parse_reference
from modelreg.registry.sources.ingest import ingest_source
from modelreg.registry.sources.inspect import inspect_source
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.versions import register_version
from modelreg.registry.words import Backend, BlobKind, EngineStatus, Precision
from modelreg_testing.registry import ACTOR, make_database

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Give the members of a whole bundle, in order."""
    folder = tmp_path_factory.mktemp("good")
    path = folder / "good.tar"
    storage = LocalStorage.create(folder / "store")
    onnx.save(_model(), folder / "m.onnx")
    source = ingest_source(inspect_source(folder / "m.onnx"), storage)
    plan, log, golden = (storage.put_bytes(word) for word in (b"plan" * 500, b"log", b"golden"))
    recipe = {"precision": "fp32", "variant": None}
    with make_database(folder) as database:
        with database.write() as connection:
            version, _ = register_version(connection, model="m", source=source, message="", tags={}, actor=ACTOR)
            golden_sets.add_golden_set(
                connection,
                version=version,
                digest=golden.digest,
                size_bytes=golden.size_bytes,
                samples=3,
                origin={},
                actor=ACTOR,
            )
            record_blob(connection, digest=log.digest, size_bytes=log.size_bytes, kind=BlobKind.LOG)
            engines.record_engine(
                connection,
                version=version,
                target=engines.ensure_target(connection, name="cpu"),
                toolchain=engines.ensure_toolchain(
                    connection,
                    name="ort",
                    backend=Backend.ONNXRUNTIME,
                    version="1.20",
                    python="/p",
                    details={},
                    actor=ACTOR,
                ),
                precision=Precision.FP32,
                recipe=recipe,
                recipe_digest=json_digest(recipe),
                variant_digest=source.digest,
                status=EngineStatus.BUILT,
                files=[StoredFile(path="model.onnx", digest=plan.digest, size_bytes=plan.size_bytes)],
                realised={},
                build_s=1.0,
                log_digest=log.digest,
                error="",
                actor=ACTOR,
            )
        write_bundle(collect(database, storage, parse_reference("m:1")), storage, path, replace=False)
    with tarfile.open(path) as opened:
        return {member.name: _read(opened, member) for member in opened}


def _read(opened: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = opened.extractfile(member)
    assert file is not None
    return file.read()


def _model(location: str | None = None) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    if location is not None:
        tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    return model


def check(path: Path, **options: Any) -> CheckedBundle:
    scratch = path.parent / "scratch"
    scratch.mkdir()
    return check_bundle(path, scratch=scratch, **options)


def pack(path: Path, files: Files) -> Path:
    with path.open("wb") as file, ArchiveWriter.on(file, compressed=path.suffix == ".gz") as writer:
        for name, data in files.items():
            writer.add_bytes(name, data)
    return path


def relist(records: dict[str, Any], blobs: list[bytes], kinds: dict[bytes, BlobKind] | None = None) -> Files:
    """Return the members of a bundle whose list is true to what is in it."""
    text = canonical_json(records) + b"\n"
    named = [
        BlobRecord(digest=sha256_hex(blob), size_bytes=len(blob), kind=(kinds or {}).get(blob, BlobKind.PLAN))
        for blob in blobs
    ]
    listing = make_listing(text, named)
    by_digest = {sha256_hex(blob): blob for blob in blobs}
    return {
        LISTING_NAME: listing.to_bytes(),
        RECORDS_NAME: text,
        **{blob_name(each.digest): by_digest[each.digest] for each in listing.blobs},
    }


def parts(good: Files) -> tuple[dict[str, Any], list[bytes]]:
    return json.loads(good[RECORDS_NAME]), [data for name, data in good.items() if name.startswith("blobs/")]


def test_a_whole_bundle_is_taken_compressed_or_not(good: Files, tmp_path: Path) -> None:
    found = check(pack(tmp_path / "a.tar", good))
    assert found.slice.version.reference == "m:1"
    assert len(found.listing.blobs) == 4
    (tmp_path / "z").mkdir()
    assert check(pack(tmp_path / "z" / "a.tar.gz", good)).slice == found.slice


def refused(path: Path, says: str, **options: Any) -> None:
    with pytest.raises(IntegrityError, match=says) as caught:
        check(path, **options)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (tarfile.DIRTYPE, "a folder"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (tarfile.GNUTYPE_LONGNAME, "a long name"),
        (tarfile.XHDTYPE, "an extended header"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_members_that_are_no_files_are_refused_anywhere(
    good: Files, tmp_path: Path, kind: bytes, says: str, place: int
) -> None:
    info = tarfile.TarInfo(list(good)[place])
    info.type, info.linkname, info.size = kind, "/etc/passwd", 0
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        for index, (name, data) in enumerate(good.items()):
            if index == place:
                file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.write(header(name, len(data)) + data + bytes(-len(data) % archive.BLOCK))
        file.write(bytes(1024))
    refused(path, says)


@pytest.mark.parametrize("name", ["../evil", "/etc/cron.d/evil", "blobs/sha256/../../evil", "blobs/sha256/" + "0" * 64])
def test_members_of_other_names_are_refused(good: Files, tmp_path: Path, name: str) -> None:
    listed = list(good.items())
    refused(pack(tmp_path / "a.tar", dict([*listed[:2], (name, b"x"), *listed[2:]])), "stands where")
    assert not (tmp_path / "evil").exists()


def test_a_member_twice_or_one_too_many_is_refused(good: Files, tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", good)
    with path.open("r+b") as file:
        file.seek(-1024, io.SEEK_END)
        name, data = list(good.items())[-1]
        file.write(header(name, len(data)) + data + bytes(-len(data) % archive.BLOCK) + bytes(1024))
    refused(path, "more in it than its list")


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_bundle_is_refused(good: Files, tmp_path: Path, at: float) -> None:
    for name in ("a.tar", "a.tar.gz"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        path = pack(folder / name, good)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * at)])
        refused(path, "cut short|cannot be unpacked|no bundle")


def test_every_flipped_bit_is_found(good: Files, tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", good)
    whole = path.read_bytes()
    for number, offset in enumerate(range(0, len(whole), max(1, len(whole) // 150))):
        data = bytearray(whole)
        data[offset] ^= 1 << offset % 8
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.tar").write_bytes(data)
        with pytest.raises(IntegrityError):
            check(folder / "a.tar")


def test_something_else_is_no_bundle(tmp_path: Path) -> None:
    for number, data in enumerate(
        (b"", b"PK\x03\x04" + bytes(2000), b"\x1f\x8b" + bytes(50), b"{}" * 600, bytes(5000))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.tar").write_bytes(data)
        refused(folder / "a.tar", "no bundle|cut short|unpacked|refused")
    with pytest.raises(UsageError, match="not a file"):
        check_bundle(tmp_path / "gone.tar", scratch=tmp_path)


def test_a_list_of_a_million_members_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    line = b'{"kind":"plan","sha256":"' + b"0" * 64 + b'","size":1},'
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header(LISTING_NAME, len(line) * 1_000_000))
    refused(path, "are allowed")
    deep = tmp_path / "deep"
    deep.mkdir()
    refused(pack(deep / "a.tar", {LISTING_NAME: b"[" * 3_000_000}), "values")
    (tmp_path / "nested").mkdir()
    refused(pack(tmp_path / "nested" / "a.tar", {LISTING_NAME: b"[" * 200_000}), "cannot be read")


def test_a_bomb_is_refused_by_what_it_says_it_becomes(good: Files, tmp_path: Path) -> None:
    records = good[RECORDS_NAME]
    blob = BlobRecord(digest="0" * 64, size_bytes=40 << 30, kind=BlobKind.PLAN)
    listing = Listing(records_digest=sha256_hex(records), records_bytes=len(records), blobs=(blob,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = pack(tmp_path / "a.tar.gz", {LISTING_NAME: listing.to_bytes(), RECORDS_NAME: records})
    refused(path, "would become")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize(
    "text",
    [
        b'{"format":1,"format":1}\n',
        b'{"format": 1}\n',
        b'{"format":NaN}\n',
        b'{"format":1e999}\n',
        b"[]\n",
        b"\xff\n",
        b"{}",
    ],
)
def test_a_list_that_is_not_spelled_as_ours_is_refused(tmp_path: Path, text: bytes) -> None:
    refused(pack(tmp_path / "a.tar", {LISTING_NAME: text}), "spelled|cannot be read")


def test_a_newer_format_says_so(good: Files, tmp_path: Path) -> None:
    body = json.loads(good[LISTING_NAME]) | {"format": 2}
    refused(pack(tmp_path / "a.tar", {LISTING_NAME: canonical_json(body) + b"\n"}), "format 2")


def _change(*path: object, to: object) -> Callable[[dict[str, Any]], None]:
    def change(records: dict[str, Any]) -> None:
        place: Any = records
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_change("version", "model", to="../../x"), "not allowed"),
        (_change("version", "number", to=0), "no number"),
        (_change("version", "number", to=True), "no number"),
        (_change("version", "source", "files", 0, "path", to="../model.onnx"), "no relative path"),
        (_change("version", "source", "files", 0, "size", to=1), "another size"),
        (_change("version", "source", "signature", "outputs", to=[]), "does not take or give"),
        (_change("engines", 0, "files", 0, "path", to="/etc/passwd"), "no relative path"),
        (_change("engines", 0, "files", to=[]), "lacks blob|has no files|none of its records"),
        (_change("engines", 0, "recipe", to={"precision": "int8"}), "not that of its digest"),
        (_change("engines", 0, "target", "name", to="../cpu"), "not allowed"),
        (_change("engines", 0, "build_s", to="soon"), "cannot be read"),
        (_change("engines", 0, "toolchain", "backend", to="bash"), "cannot be read"),
        (_change("engines", 0, "extra", to=1), "fields that no record has"),
        (_change("engines", to={}), "none of its records|cannot be read|no record"),
        (_change("golden_set", to=None), "none of its records names"),
        (_change("validations", to=[{}]), "cannot be read"),
        (_change("release", to={"sha256": "0" * 64, "channel": "production", "generation": 1}), "lacks blob"),
        (_change("format", to=2), "format 2"),
    ],
)
def test_records_that_lie_are_refused(
    good: Files, tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    records, blobs = parts(good)
    change(records)
    refused(pack(tmp_path / "a.tar", relist(records, blobs)), says)


def test_a_release_of_other_engines_is_refused(good: Files, tmp_path: Path) -> None:
    records, blobs = parts(good)
    manifest = canonical_json(
        {
            "format": 1,
            "model": "m",
            "version": 1,
            "source": records["version"]["source"]["sha256"],
            "signature": records["version"]["source"]["signature"],
            "engines": [],
        }
    )
    records["release"] = {"sha256": sha256_hex(manifest), "channel": "production", "generation": 1}
    files = relist(records, [*blobs, manifest], {manifest: BlobKind.MANIFEST})
    refused(pack(tmp_path / "a.tar", files), "not of the version and the engines")


@pytest.mark.parametrize("location", ["../../../etc/passwd", "/etc/passwd", "gone.bin"])
def test_a_source_that_reaches_out_is_refused(good: Files, tmp_path: Path, location: str) -> None:
    records, blobs = parts(good)
    evil = _model(location).SerializeToString()
    source = records["version"]["source"]
    kept = [blob for blob in blobs if sha256_hex(blob) != source["sha256"]]
    source["sha256"] = source["files"][0]["sha256"] = sha256_hex(evil)
    source["files"][0]["size"] = len(evil)
    records["engines"][0]["variant"] = sha256_hex(evil)
    refused(pack(tmp_path / "a.tar", relist(records, [*kept, evil])), "source is refused")
