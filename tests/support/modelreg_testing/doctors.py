"""Registries that something happened to, and what a doctor says of them."""

from __future__ import annotations

from pathlib import Path

from modelreg.registry.checks.findings import Finding, Level
from modelreg.registry.doctor import Doctor
from modelreg.registry.pointers import Pointer
from modelreg.registry.promotion import PromotionRequest
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.storage.interface import Storage
from modelreg.registry.words import Precision
from modelreg_testing.cli import Shop

MODEL, CHANNEL, PLACE = "lenet", "production", "lenet@production"


def promote(shop: Shop, version: int, *, storage: Storage | None = None) -> None:
    """Promote a version of the shop's model."""
    with shop.database() as database:
        Releases(database=database, storage=storage or shop.storage, actor="ada@host").promote(
            ModelReference(model=MODEL, version=version),
            channel=CHANNEL,
            request=PromotionRequest(preference=lambda _target: (Precision.FP32,)),
        )


def doctor(shop: Shop, *, storage: Storage | None = None, forward: tuple[str, ...] = (), deep: bool = False) -> Doctor:
    """Return a doctor of the shop."""
    return Doctor(
        database=shop.database(),
        storage=storage or shop.storage,
        actor="doctor@host",
        forward=forward,
        deep=deep,
    )


def bad(findings: list[Finding]) -> list[Finding]:
    """Return the findings that are not well."""
    return [finding for finding in findings if finding.level is not Level.OK]


def told(findings: list[Finding]) -> list[tuple[Level, str]]:
    """Return level and check of those that are not well."""
    return [(finding.level, finding.check) for finding in bad(findings)]


def served(storage: Storage) -> Pointer:
    """Return the pointer."""
    pointer = storage.read_pointer(MODEL, CHANNEL)
    assert pointer is not None
    return pointer


def channel_file(shop: Shop, name: str) -> Path:
    """Return a file of the channel in the shop's local store."""
    return shop.path / "store" / "channels" / MODEL / CHANNEL / name


def overwrite(path: Path, data: bytes) -> bytes:
    """Write other bytes to a file that may be read-only, and return what it held."""
    before = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data)
    return before
