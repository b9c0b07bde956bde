"""A monitor of what a server serves: it knows what waits, and compares a share of the answers if that is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from modelreg.config.health_limits import HealthLimits
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg.runtime.monitoring.parity import OnlineParity
from modelreg.runtime.monitoring.references import ReleasedReference
from modelreg.runtime.serve.models import ServedModel


def watch_models(
    models: Sequence[ServedModel],
    *,
    limits: HealthLimits | None = None,
    parity_share: float | None = None,
    store_url: str = "",
) -> Monitor:
    """
    Return what counts and judges open models; it is not started.

    Args:
        models: Of `serve_models`.
        limits: Of the health rules; None: the settings of the defaults and the environment.
        parity_share: The part of the answers that is compared with the source's, 0 to 1; None for nothing.
        store_url: Where the sources are.
    """
    parity = {}
    if parity_share is not None:
        parity = {model.name: OnlineParity(ReleasedReference(store_url), share=parity_share) for model in models}
    return Monitor(
        {model.name: model.active for model in models},
        limits=limits,
        parity=parity,
        pending=lambda: {model.name: model.waiting for model in models},
    )
