"""Drafts of definitions, made from recordings of two sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels import inputs
from kernels.drafts.draft import Draft, draft
from kernels.drafts.source import Seen
from kernels.errors import DraftError
from kernels.models.recognition import Recognition
from kernels.models.recording import record
from kernels.models.regions import Cuts

SIZES = ((11, 48), (13, 80))
NAMES = {(11, 13): "tokens", (48, 80): "hidden"}


class Norm(nn.Module):
    """Not one of the catalogue: mean and spread, and a weight that is squared."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, generator=torch.Generator().manual_seed(1)))

    def forward(self, x_1TH: Tensor) -> Tensor:
        centred_1TH = x_1TH - x_1TH.mean(-1, keepdim=True)
        spread_1T1 = torch.sqrt(centred_1TH.pow(2).mean(-1, keepdim=True) + 1e-5)
        return centred_1TH / spread_1T1 * self.weight**2


class Gate(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.project = nn.Linear(hidden, hidden)

    def forward(self, x_1TH: Tensor) -> Tensor:
        first, second = self.project(x_1TH).chunk(2, dim=-1)
        return torch.sigmoid(first) * functional.silu(second)


class OverTokens(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()

    def forward(self, x_1TH: Tensor) -> Tensor:
        return x_1TH * torch.rsqrt(x_1TH.pow(2).mean(1, keepdim=True) + 1e-5)


def _seen(make: Callable[[int], nn.Module], number: int = 0) -> tuple[Seen, Seen]:
    """That operator of the module in the order in which it calls them, at both sizes."""
    found = []
    for tokens, hidden in SIZES:
        x_1TH = torch.randn(1, tokens, hidden, generator=torch.Generator().manual_seed(2))
        recognition = Recognition(record(make(hidden), (x_1TH,)))
        piece = recognition.calls()[number].piece
        assert piece is not None
        found.append(Seen(recognition.cuts, piece))
    return found[0], found[1]


def _drafted(make: Callable[[int], nn.Module], number: int = 0) -> Draft:
    return draft("drafted", *_seen(make, number), NAMES)


def test_a_draft_computes_what_was_recorded_at_any_size() -> None:
    definition = _drafted(Norm).definition
    assert definition.axes.keys() == {"tokens", "hidden"}
    assert definition.constant_axes == ("hidden",)
    assert definition.row_axis == "tokens"
    module = Norm(33).double()
    x_TH = torch.randn(5, 33, generator=torch.Generator().manual_seed(3)).double()
    (found_TH,) = definition.reference(x_TH, module.weight)
    torch.testing.assert_close(found_TH, module(x_TH[None])[0])


def test_a_draft_is_a_definition_that_the_judge_can_use() -> None:
    definition = _drafted(Norm).definition
    for axes in definition.edge_axes:
        for dtype in ("float32", "bfloat16"):
            made = inputs.workload(definition, dtype, **axes)
            for regime in definition.regimes:
                values = inputs.materialise(definition, made, regime, torch.Generator().manual_seed(0))
                (found,) = definition.baselines["eager"](*values)
                (scale,) = definition.error_scale(*(value.double() for value in values))
                assert found.dtype is values[0].dtype
                assert bool((scale > 0).all())
    cost = definition.cost({"tokens": 3, "hidden": 5}, 4)
    assert (cost.bytes_read, cost.bytes_written) == (4 * (15 + 5), 4 * 15)


def test_the_file_is_a_module_by_itself_and_is_never_overwritten(tmp_path: Path) -> None:
    made = _drafted(Norm)
    path = made.write(tmp_path / "new")
    spec = importlib.util.spec_from_file_location("reviewed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.DEFINITION.name == "drafted"
    with pytest.raises(DraftError, match="exists already"):
        made.write(tmp_path / "new")


def test_a_linear_layer_with_a_bias_is_drafted_with_its_weights() -> None:
    definition = _drafted(Gate).definition
    assert [spec.role.value for spec in definition.inputs] == ["weight", "activation", "weight"]


def test_parts_of_a_tensor_are_inputs_of_their_own_where_the_whole_would_be_twice_as_wide() -> None:
    first, second = _seen(Gate, number=1)
    with pytest.raises(DraftError, match=r"half as wide as another's hidden|twice as wide"):
        draft("drafted", first, second, NAMES)
    apart = [Seen(Cuts(seen.recording, whole_inputs=False), seen.piece) for seen in (first, second)]
    definition = draft("drafted", apart[0], apart[1], NAMES).definition
    assert len(definition.inputs) == 2
    assert definition.elementwise


def test_rows_that_depend_on_one_another_are_told() -> None:
    assert _drafted(OverTokens).definition.row_axis == ""


def test_recordings_of_different_modules_are_refused() -> None:
    (first, _), (_, second) = _seen(Norm), _seen(OverTokens)
    with pytest.raises(DraftError, match="do not do the same"):
        draft("drafted", first, second, NAMES)


def test_operations_that_drafts_are_not_written_of_are_named() -> None:
    class Odd(OverTokens):
        def forward(self, x_1TH: Tensor) -> Tensor:
            return torch.digamma(x_1TH.abs() + 1)

    with pytest.raises(DraftError, match=r"aten\.digamma"):
        _drafted(Odd)
