"""Work for processes that promote against each other; a module, so that a spawned process can import it."""

from __future__ import annotations

from pathlib import Path

from modelreg.cli.context import open_database
from modelreg.config.settings import Home
from modelreg.registry.errors import ActivationConflictError
from modelreg.registry.promotion import PromotionRequest
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Precision


def contend(home: Path, *, model: str, channel: str, attempts: int) -> tuple[int, int]:
    """Promote the version after the one that is served, on condition that it still is; return (wins, losses)."""
    storage = LocalStorage(home / "store")
    wins = losses = 0
    with open_database(Home(home)) as database:
        releases = Releases(database=database, storage=storage, actor="contender", lock_timeout_s=60.0)
        for _ in range(attempts):
            current = storage.read_pointer(model, channel)
            assert current is not None
            request = PromotionRequest(preference=lambda _target: (Precision.FP32,), expect_current=current.generation)
            reference = ModelReference(model=model, version=current.version % 3 + 1)
            try:
                releases.promote(reference, channel=channel, request=request)
            except ActivationConflictError:
                losses += 1
            else:
                wins += 1
    return wins, losses
