"""What the health rules are given: one moment of a serving process. Values."""

from __future__ import annotations

from dataclasses import dataclass

from modelreg.runtime.monitoring.devices import Devices
from modelreg.runtime.monitoring.host_load import HostLoad
from modelreg.runtime.serving import ActiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRequests:
    """Requests of the last `seconds`, and how many of them failed by the server's fault."""

    seconds: float
    requests: int
    faults: int

    @property
    def per_second(self) -> float | None:
        """Return the rate; None where no time went by."""
        return self.requests / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFacts:
    """How far the answers of one output are from the reference's; `sqnr_db` is None before enough was compared."""

    output: str
    samples: int
    sqnr_db: float | None
    limit_db: float
    not_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """
    A served model.

    Attributes:
        name: What it is asked under.
        state: What it says of itself; None where it says nothing: it is closed, or not yet open.
        stale_s: Seconds for which the store has been ahead; 0 where it is not.
        recent: Its requests of the last minute; None before a second look.
        parity: What online parity found, for each output of the generation that is served.
    """

    name: str
    state: ActiveState | None
    stale_s: float = 0.0
    recent: RecentRequests | None = None
    parity: tuple[ParityFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One moment of a process."""

    models: tuple[ModelFacts, ...]
    devices: Devices
    host: HostLoad

    @property
    def needs_gpu(self) -> bool:
        """Return whether a GPU answers: then what cannot be read of it is missing."""
        served = (each.state.served for each in self.models if each.state is not None)
        return any(each is not None and each.target != "cpu" for each in served)
