"""Where the trained networks lie: the two seeds that are committed, and those that a campaign trains."""

from __future__ import annotations

from pathlib import Path

FILES = Path(__file__).with_name("files")
TRAINED = Path(__file__).parents[3] / "build" / "faults"


def is_there(network: str, seed: int) -> bool:
    """Return whether a trained network and its arrays exist."""
    return all(place(f"{network}-{seed}.{suffix}").exists() for suffix in ("onnx", "npz"))


def place(name: str) -> Path:
    """Return where a file is, or would be."""
    committed = FILES / name
    return committed if committed.exists() else TRAINED / name
