"""Where the trained networks lie: what is committed, and what a campaign trains."""

from __future__ import annotations

from pathlib import Path

FILES = Path(__file__).with_name("files")
TRAINED = Path(__file__).parents[3] / "build" / "faults"


def is_there(network: str, seed: int) -> bool:
    """Return whether a trained network and its arrays exist."""
    return any(_is_whole(folder, f"{network}-{seed}") for folder in (FILES, TRAINED))


def place(name: str) -> Path:
    """
    Return where a file is, or would be.

    A network and its arrays are of one training: where they are committed without each other, both are those that the
    campaign trains, since no two machines train alike.
    """
    stem = name.rpartition(".")[0]
    folder = next((each for each in (FILES, TRAINED) if _is_whole(each, stem)), None)
    if folder is not None:
        return folder / name
    return next((each / name for each in (FILES, TRAINED) if (each / name).exists()), TRAINED / name)


def _is_whole(folder: Path, stem: str) -> bool:
    return all((folder / f"{stem}.{suffix}").exists() for suffix in ("onnx", "npz"))
