"""What is kept of a reference's layers, on networks whose layers are awkward."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.registry.errors import GoldenSetError, ReferenceModelError
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.validators.activation_capture import WantedActivations
from modelreg.validators.activations import KeptActivations, read_kept
from modelreg.validators.torch_reference import run_reference
from modelreg_testing.golden import signature, spec

torch: Any = pytest.importorskip("torch")

LINE = signature([spec("x", ("N", 6))], [spec("y", ("N", 2))])
ROWS: NDArray[np.float32] = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)


def capture(
    folder: Path,
    body: str,
    *,
    patterns: Sequence[str] = ("all",),
    budget: int = 1 << 20,
    declared: Signature = LINE,
    rows: NDArray[np.float32] = ROWS,
    batch: int = 8,
) -> tuple[KeptActivations, dict[str, NDArray[Any]]]:
    user = folder / "user.py"
    user.write_text("import torch\nfrom torch import nn\n\n" + textwrap.dedent(body))
    np.savez(folder / "inputs.npz", x=rows)
    destination = folder / "golden.safetensors"
    destination.unlink(missing_ok=True)
    run_reference(
        reference=f"{user}:Net",
        weights=None,
        inputs=str(folder / "inputs.npz"),
        signature=declared,
        seed=0,
        activations=WantedActivations(patterns=tuple(patterns), budget_bytes=budget),
        destination=destination,
        batch=batch,
    )
    with open_tensor_set(destination) as golden:
        kept = read_kept(golden)
        assert kept is not None
        return kept, {name.removeprefix("activation."): golden.read(name) for name in golden.tensors}


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 40), nn.ReLU(inplace=True), nn.Linear(40, 2)

    def forward(self, x):
        return self.last(self.act(self.first(x)))
"""


def test_samples_are_thinned_evenly_to_the_budget_and_their_numbers_are_kept(tmp_path: Path) -> None:
    whole, all_rows = capture(tmp_path, NET)
    kept, rows = capture(tmp_path, NET, budget=10 * 82 * 4)
    assert whole.units == tuple(range(20))
    assert kept.units == tuple(range(0, 20, 2))
    assert all(each.elements is None for each in kept.activations)
    for name in ("first", "act", "last"):
        np.testing.assert_array_equal(rows[name], all_rows[name][::2])


def test_where_eight_samples_do_not_fit_the_largest_layers_keep_elements_whose_places_are_known(tmp_path: Path) -> None:
    _, all_rows = capture(tmp_path, NET)
    kept, rows = capture(tmp_path, NET, budget=8 * 44 * 4)
    assert len(kept.units) <= 8
    by_name = {each.name: each for each in kept.activations}
    elements = by_name["first"].elements
    assert elements is not None
    assert elements.count < elements.of == 40
    assert by_name["last"].elements is None
    expected = all_rows["first"][list(kept.units)][:, elements.places()]
    np.testing.assert_array_equal(rows["first"], expected)
    assert sum(rows[name].nbytes for name in by_name) <= kept.budget_bytes
    again, _ = capture(tmp_path, NET, budget=8 * 44 * 4)
    assert again == kept


def test_a_budget_that_holds_nothing_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match=r"3 activations do not fit into 100 bytes: 136 is the least"):
        capture(tmp_path, NET, budget=100)


def test_chosen_modules_may_be_containers_and_a_pattern_without_a_module_is_refused(tmp_path: Path) -> None:
    body = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stage = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.stage(x))
    """
    kept, _ = capture(tmp_path, body, patterns=["stage", "la*"])
    assert [each.name for each in kept.activations] == ["stage", "last"]
    with pytest.raises(ReferenceModelError, match="the reference has no module 'head'"):
        capture(tmp_path, body, patterns=["head"])


def test_tuples_mappings_integers_and_modules_that_are_never_called(tmp_path: Path) -> None:
    body = """
    class Two(nn.Module):
        def forward(self, x):
            return x + 1, {"low": x - 1, "best": x.argmax(1)}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.two, self.idle = Two(), nn.Linear(6, 6)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.last = nn.Linear(6, 2)

        def forward(self, x):
            up, rest = self.two(x)
            seen, _ = self.attention(up[:, None], up[:, None], up[:, None])
            return self.last(seen[:, 0] + rest["low"])
    """
    kept, rows = capture(tmp_path, body)
    names = [each.name for each in kept.activations]
    assert names[:3] == ["two[0]", "two[1][low]", "attention[0]"]  # the attention calls no module of its own
    np.testing.assert_allclose(rows["two[1][low]"], ROWS - 1, atol=1e-6)
    assert "no plain floating numbers" in kept.left_out["two[1][best]"]
    assert "never called" in kept.left_out["idle"]


def test_samples_are_found_along_any_axis_and_several_entries_of_one_sample(tmp_path: Path) -> None:
    body = """
    class Turn(nn.Module):
        def forward(self, x):
            return x.reshape(len(x), 2, 3).transpose(0, 1)  # (2, N, 3)

    class Split(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1).reshape(-1, 3)  # (N * 2, 3)

    class Mix(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 3)  # (2 * N, 3): the samples are not together

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn, self.split, self.mix, self.last = Turn(), Split(), Mix(), nn.Linear(6, 2)

        def forward(self, x):
            turned = self.turn(x)
            self.mix(turned)
            return self.last(self.split(turned).reshape(-1, 6))
    """
    kept, rows = capture(tmp_path, body)
    by_name = {each.name: each for each in kept.activations}
    assert (by_name["turn"].axis, by_name["split"].per) == (1, 2)
    np.testing.assert_array_equal(rows["turn"], ROWS.reshape(20, 2, 3))
    np.testing.assert_array_equal(rows["split"], ROWS.reshape(20, 2, 3))
    assert "do not lie one after the other" in kept.left_out["mix"]


def test_a_model_of_a_fixed_batch_keeps_whole_runs(tmp_path: Path) -> None:
    declared = signature([spec("x", (4, 6))], [spec("y", (4, 2))])
    kept, rows = capture(tmp_path, NET, declared=declared)
    assert (kept.unit, kept.units) == ("run", tuple(range(5)))
    assert rows["first"].shape == (5, 4, 40)


@pytest.mark.parametrize("make", ["torch.jit.script(Plain())", "torch.jit.freeze(torch.jit.script(Plain().eval()))"])
def test_a_scripted_or_frozen_part_is_said_to_have_nothing_to_listen_to(tmp_path: Path, make: str) -> None:
    body = NET.replace("class Net(", "class Plain(") + textwrap.dedent(f"""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last = {make}, nn.Linear(2, 2)

        def eval(self):
            return self

        def forward(self, x):
            return self.last(self.body(x))
    """)
    kept, _ = capture(tmp_path, body)
    assert [each.name for each in kept.activations] == ["last"]
    assert kept.left_out["body"] == "it is a scripted or frozen graph, which calls no hooks"


def test_a_scripted_reference_is_refused(tmp_path: Path) -> None:
    whole = NET.replace("class Net(", "class Plain(") + "\n\ndef Net():\n    return torch.jit.script(Plain())\n"
    with pytest.raises(ReferenceModelError, match="a scripted or traced graph"):
        capture(tmp_path, whole)
