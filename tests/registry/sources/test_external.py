"""Tests of external data: where it may lie, and whether it fits."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from onnx import TensorProto

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.external import ExternalData, check_location, find_external_data
from modelreg.registry.sources.tensors import TensorFacts
from modelreg_testing import onnx_models

SIZE = 400


def tensor(
    location: str | None = "w.bin",
    *,
    dims: tuple[int, ...] = (100,),
    data_type: int = TensorProto.FLOAT,
    more: tuple[tuple[str, str], ...] = (),
    name: str = "w",
) -> TensorFacts:
    where = () if location is None else (("location", location),)
    return TensorFacts(
        name=name, data_type=data_type, dims=dims, role="initializer", payloads={}, external=where + more
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with one data file of 400 bytes; a secret lies outside."""
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "w.bin").write_bytes(bytes(SIZE))
    (tmp_path / "secret").write_bytes(bytes(SIZE))
    return inside


def find(folder: Path, *tensors: TensorFacts) -> ExternalData:
    return find_external_data(folder / "model.onnx", tensors)


def test_a_file_that_two_tensors_share_is_found_once(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "v.bin").write_bytes(bytes(SIZE))
    halves = [tensor("w.bin", dims=(50,), more=(("offset", offset),)) for offset in ("0", "200")]
    found = find(folder, *halves, tensor("./a//v.bin"), tensor("a/v.bin"))
    assert [(file.name, file.path, file.size_bytes) for file in found.files] == [
        ("a/v.bin", folder / "a/v.bin", SIZE),
        ("w.bin", folder / "w.bin", SIZE),
    ]
    assert found.warnings == ()


def test_a_tensor_with_its_numbers_inside_needs_no_file(folder: Path) -> None:
    inside = TensorFacts(name="b", data_type=1, dims=(1,), role="initializer", payloads={}, external=None)
    assert find(folder, inside).files == ()


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("../secret", "leaves the model's folder"),
        ("a/../w.bin", "leaves the model's folder"),
        ("../does-not-exist", "leaves the model's folder"),
        ("..", "leaves the model's folder"),
        ("/etc/passwd", "an absolute path"),
        ("//w.bin", "an absolute path"),
        ("..\\secret", "spelt for Windows"),
        ("C:w.bin", "spelt for Windows"),
        ("c:/w.bin", "spelt for Windows"),
        ("w\0.bin", "control characters"),
        ("w\n.bin", "control characters"),
        ("w\x7f.bin", "control characters"),
        ("", "names no file"),
        (".", "names no file"),
        ("model.onnx", "the registry gives to the model itself"),
        ("./model.onnx/w.bin", "the registry gives to the model itself"),
    ],
)
def test_a_location_that_is_not_beside_the_model_is_refused_by_its_text(location: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as caught:
        check_location(location, tensor="tensor 'w'")
    assert "\n" not in str(caught.value)
    assert caught.value.hint()


@pytest.mark.parametrize(
    "location", ["%2e%2e%2fsecret", "file:#w", "CON", "w w.bin", "é", "e\u0301", "🦜.bin", "...", "x" * 255]
)
def test_odd_but_harmless_names_are_kept_letter_by_letter(folder: Path, location: str) -> None:
    if len(os.fsencode(location)) <= 255:
        (folder / location).write_bytes(bytes(SIZE))
    (file,) = find(folder, tensor(location)).files
    assert file.name == location


def test_a_name_too_long_for_the_file_system_is_missing(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"too long|missing"):
        find(folder, tensor("x" * 300))


def test_missing_data_is_named_with_the_tensor_that_needs_it(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"tensor 'w' is missing: .*gone\.bin does not exist") as caught:
        find(folder, tensor("gone.bin"))
    assert "beside the model" in caught.value.hint()


def test_a_location_below_a_file_is_missing(folder: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        find(folder, tensor("w.bin/v.bin"))


def test_a_link_out_of_the_folder_is_refused_with_the_advice_to_copy(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret")
    with pytest.raises(SourceError, match="is a link that leaves the model's folder") as caught:
        find(folder, tensor("link.bin"))
    assert "cp -rL" in caught.value.hint()


def test_a_dangling_link_out_of_the_folder_is_refused_for_where_it_leads(folder: Path) -> None:
    (folder / "link.bin").symlink_to("../nothing")
    with pytest.raises(SourceError, match="leaves the model's folder"):
        find(folder, tensor("link.bin"))


def test_a_folder_that_links_out_is_refused(folder: Path) -> None:
    (folder / "data").symlink_to(folder.parent)
    with pytest.raises(SourceError, match="leaves the model's folder"):
        find(folder, tensor("data/secret"))


def test_a_twin_of_the_folder_with_a_longer_name_is_outside(folder: Path) -> None:
    twin = folder.parent / "model-twin"
    twin.mkdir()
    (twin / "w.bin").write_bytes(bytes(SIZE))
    (folder / "link.bin").symlink_to(twin / "w.bin")
    with pytest.raises(SourceError, match="leaves the model's folder"):
        find(folder, tensor("link.bin"))


def test_a_link_inside_the_folder_and_a_hard_link_are_fine(folder: Path) -> None:
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "hard.bin").hardlink_to(folder.parent / "secret")
    assert [file.size_bytes for file in find(folder, tensor("link.bin"), tensor("hard.bin")).files] == [SIZE, SIZE]


def test_a_dangling_link_and_a_loop_inside_the_folder_are_refused(folder: Path) -> None:
    (folder / "dangling.bin").symlink_to("nothing")
    (folder / "loop.bin").symlink_to("loop.bin")
    with pytest.raises(SourceError, match="link to a file that does not exist"):
        find(folder, tensor("dangling.bin"))
    with pytest.raises(SourceError, match=r"loop\.bin"):
        find(folder, tensor("loop.bin"))


def test_data_is_looked_for_beside_the_name_that_was_given_not_where_a_link_leads(folder: Path) -> None:
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    (blobs / "abc").write_bytes(b"the model")
    (folder / "model.onnx").symlink_to(blobs / "abc")
    (file,) = find(folder, tensor()).files
    assert file.path == folder / "w.bin"


def test_a_folder_that_is_itself_reached_by_a_link_is_fine(folder: Path) -> None:
    (folder.parent / "alias").symlink_to(folder)
    assert find(folder.parent / "alias", tensor()).files[0].size_bytes == SIZE


def test_pipes_folders_and_sockets_are_refused_unopened(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    with pytest.raises(SourceError, match="pipe is a named pipe"):
        find(folder, tensor("pipe"))
    with pytest.raises(SourceError, match="sub is a folder"):
        find(folder, tensor("sub"))
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # a socket's path may only be short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        with pytest.raises(SourceError, match="socket is a socket"):
            find(folder, tensor("socket"))


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="making a device node needs root")
def test_a_device_in_the_folder_is_refused(folder: Path) -> None:
    try:
        os.mknod(folder / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this container may not make device nodes")
    with pytest.raises(SourceError, match="zero is a device"):
        find(folder, tensor("zero"))


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize(
    "text", ["-1", "", " 4", "0x10", "4.0", "1e3", "\uff19", "18446744073709551615", "9" * 40, "+4"]
)
def test_an_offset_or_length_that_is_no_byte_count_is_refused(folder: Path, key: str, text: str) -> None:
    with pytest.raises(SourceError, match=f"the {key} .* which is no byte count"):
        find(folder, tensor(more=((key, text),)))


@pytest.mark.parametrize("offset", ["4", "400", "9223372036854775807"])
def test_a_range_past_the_end_of_the_file_is_refused(folder: Path, offset: str) -> None:
    with pytest.raises(SourceError, match=rf"w\.bin is too short: .*needs bytes {offset} to .* file has 400"):
        find(folder, tensor(more=(("offset", offset), ("length", "400"))))


def test_a_short_file_is_refused_without_a_length_too(folder: Path) -> None:
    with pytest.raises(SourceError, match="is too short"):
        find(folder, tensor(dims=(101,)))


@pytest.mark.parametrize("length", ["396", "404", "0"])
def test_a_length_that_does_not_fit_the_shape_is_refused(folder: Path, length: str) -> None:
    with pytest.raises(SourceError, match=f"is {length} bytes long, but its shape needs 400"):
        find(folder, tensor(more=(("length", length),)))


def test_packed_types_need_half_a_byte_each(folder: Path) -> None:
    assert find(folder, tensor(dims=(799,), data_type=TensorProto.INT4)).files
    with pytest.raises(SourceError, match="too short"):
        find(folder, tensor(dims=(801,), data_type=TensorProto.INT4))


def test_an_empty_tensor_may_point_at_the_end(folder: Path) -> None:
    assert find(folder, tensor(dims=(0, 3), more=(("offset", "400"), ("length", "0")))).files


def test_strings_cannot_be_external(folder: Path) -> None:
    with pytest.raises(SourceError, match="no fixed size"):
        find(folder, tensor(data_type=TensorProto.STRING))


def test_a_doubled_entry_is_refused_and_an_unknown_one_is_a_warning(folder: Path) -> None:
    with pytest.raises(SourceError, match="two entries 'location'"):
        find(folder, tensor(more=(("location", "w.bin"),)))
    odd = find(folder, tensor(more=(("compression", "zstd"), ("checksum", "abc"))))
    assert odd.warnings == ("external data has the unknown entry 'compression', which is ignored",)


def test_a_missing_location_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match="names no file"):
        find(folder, tensor(None))


def test_an_unnamed_tensor_is_described_by_its_type(folder: Path) -> None:
    with pytest.raises(SourceError, match="an unnamed FLOAT tensor"):
        find(folder, tensor("gone", name=""))


def test_the_builder_of_external_models_agrees_with_the_check(tmp_path: Path) -> None:
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "m.onnx", location="a/w.bin")
    assert (tmp_path / "a/w.bin").stat().st_size == 3496
    assert path.exists()
