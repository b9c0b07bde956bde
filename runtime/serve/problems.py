"""Why a request is not answered: what the client hears, and how it counts."""

from __future__ import annotations

from modelreg.registry.errors import ModelregError
from modelreg.runtime.requests import RequestOutcome


class RequestError(ModelregError):
    """
    A request that is answered with an error. The fault is the client's unless a subclass says otherwise.

    Attributes:
        status: The HTTP status.
        outcome: How it counts.
        retry_after_s: When another try may help; None where it will not.
    """

    status = 400
    outcome = RequestOutcome.INVALID
    retry_after_s: int | None = None

    @property
    def text(self) -> str:
        """Return what the client reads: the fact, and what to do."""
        return f"{self}. {self.hint()}" if self.hint() else str(self)


class InvalidRequestError(RequestError):
    """It is not what the protocol, or the model, takes."""


class UnknownModelError(RequestError):
    """No such model or version is served here."""

    status = 404


class SlowClientError(RequestError):
    """The body did not come in time."""

    status = 408


class TooLargeError(RequestError):
    """The body is larger than the limit."""

    status = 413


class UnknownEncodingError(RequestError):
    """The body is compressed in a way that is not known here."""

    status = 415


class NoRoomError(RequestError):
    """As many requests wait as may."""

    status = 503
    outcome = RequestOutcome.REFUSED
    retry_after_s = 1


class NoEngineError(RequestError):
    """There is no engine at this moment, or the server ends."""

    status = 503
    outcome = RequestOutcome.REFUSED
    retry_after_s = 1


class ExpiredError(RequestError):
    """Its deadline passed."""

    status = 504
    outcome = RequestOutcome.EXPIRED


class GoneError(RequestError):
    """The client went away; nobody hears this."""

    status = 499
    outcome = RequestOutcome.CANCELED


class EngineFailedError(RequestError):
    """The engine, or the server, failed over it."""

    status = 500
    outcome = RequestOutcome.FAILED
