"""Where an error is born. Pure.

A layer's *own* error is what it makes of the reference's values; its *carried* error is what it makes of the
candidate's. A layer is bad when its carried error is beyond the limit, or it gives NaN or infinities that the reference
does not. A bad layer is where the error is born when its own error is beyond the limit too; else it only carries what
came to it. An error that no layer behind carries on has *healed*: a mask of -1e38 may become -65504, and the softmax
is the same. Where layers cannot be run alone, an error is born where it is several times that of every input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from modelreg.registry.words import Json

_JUMP = 4.0
"""So many times the noise of every input (6 dB) has a layer that added to it itself."""
_OWN_SHARE = 0.5


class State(str, Enum):
    """What a layer's error is."""

    OK = "ok"
    BORN = "born"
    CARRIED = "carried"
    HEALED = "healed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerError:
    """
    One layer's error, as powers of noise by power of signal.

    Attributes:
        noise: The carried noise; infinite where there is no signal, or all is lost.
        own: The same when the layer is given the reference's values; None where it could not be run alone.
        odd: NaN and infinite values that the reference does not have.
        own_odd: The same on the reference's values.
        inputs: The layers that it reads.
    """

    name: str
    noise: float
    own: float | None
    odd: int
    own_odd: int
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The state of each layer by name, the first bad one, and all by how much they add, the worst first."""

    states: Mapping[str, State]
    first_bad: str
    ranking: tuple[str, ...]

    def to_json(self) -> Json:
        """Return the diagnosis as JSON; the states are with the layers."""
        return {"first_bad": self.first_bad, "ranking": list(self.ranking)}


def diagnose(layers: Sequence[LayerError], *, limit_db: float) -> Diagnosis:
    """
    Return where errors are born.

    Args:
        layers: In order of execution.
        limit_db: The signal-to-noise ratio below which a layer is bad, in decibels.
    """
    by_name = {layer.name: layer for layer in layers}
    limit = 10 ** (-limit_db / 10)
    states: dict[str, State] = {}
    for layer in layers:
        states[layer.name] = _judge(layer, [by_name[name] for name in layer.inputs if name in by_name], limit)
    for name in _healed(layers, states):
        states[name] = State.HEALED
    bad = [layer.name for layer in layers if states[layer.name] in (State.BORN, State.CARRIED)]
    born = [name for name in bad if states[name] is State.BORN]
    if bad and not born:  # each adds a little: the one that adds most of the first bad one's noise
        first = by_name[bad[0]]
        before = [layer for layer in layers[: layers.index(first) + 1] if states[layer.name] is not State.HEALED]
        worst = max(before, key=_added)
        states[worst.name] = State.BORN
        born = [worst.name]
    places = {layer.name: index for index, layer in enumerate(layers)}
    is_healed = {name: state is State.HEALED for name, state in states.items()}
    ranking = sorted(layers, key=lambda layer: (is_healed[layer.name], -_added(layer), places[layer.name]))
    return Diagnosis(states=states, first_bad=born[0] if born else "", ranking=tuple(layer.name for layer in ranking))


def _healed(layers: Sequence[LayerError], states: Mapping[str, State]) -> list[str]:
    """Return the bad layers whose readers are all fine, or healed themselves; infinities and NaN do not heal."""
    readers: dict[str, list[str]] = {}
    for layer in layers:
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer.name)
    healed: set[str] = set()
    for layer in reversed(layers):
        behind = readers.get(layer.name, [])
        is_fine = all(states[name] is State.OK or name in healed for name in behind)
        if states[layer.name] is not State.OK and behind and is_fine and not layer.odd:
            healed.add(layer.name)
    return sorted(healed)


def _judge(layer: LayerError, inputs: Sequence[LayerError], limit: float) -> State:
    if not layer.odd and layer.noise <= limit:
        return State.OK
    if layer.own is not None:
        is_own = layer.own_odd > 0 or not layer.own <= limit or layer.own >= _OWN_SHARE * layer.noise
        return State.BORN if is_own else State.CARRIED
    if layer.odd and not any(each.odd for each in inputs):
        return State.BORN
    before = max((each.noise for each in inputs), default=0.0)
    is_new = not any(each.odd for each in inputs) and (before <= limit or layer.noise > _JUMP * before)
    return State.BORN if is_new and layer.noise > _JUMP * before else State.CARRIED


def _added(layer: LayerError) -> float:
    """Return the noise that a layer adds; values that are no numbers any more count as more than any noise."""
    if layer.own is None:
        return float("inf") if layer.odd else layer.noise
    return float("inf") if layer.own_odd else layer.own
