from __future__ import annotations

from pathlib import Path

import pytest

from fault_corpus import places


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    made = tmp_path / "committed", tmp_path / "trained"
    for folder, name in zip(made, ("FILES", "TRAINED"), strict=True):
        folder.mkdir()
        monkeypatch.setattr(places, name, folder)
    return made


def test_a_network_and_its_arrays_are_of_one_training(folders: tuple[Path, Path]) -> None:
    # Seen with ten seeds: an ONNX that is committed alone met the arrays of another training, and four engines that
    # nothing is wrong with failed their gates.
    committed, trained = folders
    (committed / "lenet-1.onnx").touch()
    assert places.place("lenet-1.onnx") == committed / "lenet-1.onnx"
    assert not places.is_there("lenet", 1)
    both = [f"lenet-1.{suffix}" for suffix in ("onnx", "npz")]
    for name in both:
        (trained / name).touch()
    assert [places.place(name) for name in both] == [trained / name for name in both]
    assert places.is_there("lenet", 1)


def test_what_is_committed_whole_goes_before_what_was_trained(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        for suffix in ("onnx", "npz"):
            (folder / f"lenet-0.{suffix}").touch()
    assert places.place("lenet-0.npz") == folders[0] / "lenet-0.npz"


def test_what_is_nowhere_would_be_trained(folders: tuple[Path, Path]) -> None:
    assert places.place("lenet-7.onnx") == folders[1] / "lenet-7.onnx"
    assert not places.is_there("lenet", 7)
