"""A definition: what an operator computes, what it costs, and how its inputs look in traffic.

Shape suffixes used by the operators: T tokens, H hidden, I intermediate, K in features, N out features or query heads,
M key heads, D head dimension, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "bfloat16")


class Role(StrEnum):
    """What a tensor is to the engine: activations change with each call, weights only when a model is loaded."""

    ACTIVATION = "activation"
    WEIGHT = "weight"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an operator."""

    name: str
    dims: tuple[str, ...]
    """Axis names, outermost first."""
    role: Role = Role.ACTIVATION


@dataclass(frozen=True)
class ScalarSpec:
    """One scalar argument, passed as a double."""

    name: str
    default: float
    other: float | None = field(default=None, compare=False)
    """Another value that it may have, so far from the first that answers differ plainly: who does not read it is wrong.
    None where nothing is known of it. It checks the contract, and is no part of it.
    """


@dataclass(frozen=True)
class Cost:
    """What one call must do at least."""

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Definition:
    """The contract of an operator. Callables take tensors in the order of `inputs`, then scalars.

    `reference` computes in the dtype of its inputs: the judge hands it float64 copies of the quantised inputs.
    `baselines` maps a name to an implementation that returns the outputs as the engine would: `eager` is what the fleet
    runs today, `torch` the library's own single call where there is one. `torch.compile` of `eager` is derived by
    whoever times it.
    """

    name: str
    summary: str
    axes: dict[str, str]
    """Axis name to meaning, in order."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    constant_axes: tuple[str, ...]
    """Axes that the model fixes; the others vary from call to call."""
    reference: Callable[..., tuple[Tensor, ...]]
    baselines: Mapping[str, Callable[..., tuple[Tensor, ...]]]
    error_scale: Callable[..., tuple[Tensor, ...]]
    """Per output, the magnitude (float64, output's shape) that rounding errors scale with: the condition of the sum."""
    make_inputs: Callable[..., tuple[Tensor, ...]]
    """`(generator, axes, dtype, regime) -> dense inputs`; `regime` is one of `regimes`."""
    regimes: tuple[str, ...]
    """Names of input distributions: `traffic` first, then stress values."""
    cost: Callable[[Mapping[str, int], int], Cost]
    """`(axes, item_bytes) -> Cost`."""
    edge_axes: Sequence[Mapping[str, int]]
    """Sizes at which every candidate is checked, moved into its domain: the smallest call first, then odd and prime
    ones, one below and one past a vector.
    """
    row_axis: str = ""
    """An axis of which every place can be computed by itself, from that place of the inputs that have it and all of
    the others. Empty if there is none.
    """
    independent_axis: str = ""
    """A model-fixed axis along which outputs are independent: a part of it can be recomputed from the same part of the
    weights. Every weight has it, no activation does, and weights are drawn alike in every regime. Empty if there is
    none.
    """
    axis_steps: Mapping[str, int] = field(default_factory=dict)
    """Axes whose extent must be a multiple of a number, and the number."""
    elementwise: bool = False
    """Whether every place of the outputs depends on that place of the inputs alone."""
    sensitivity: Callable[..., tuple[Tensor, ...]] | None = None
    """`(position, off, *inputs, *scalars) -> per output`, in float64: how far the outputs move if the activation at
    that position is off by a few roundings of size `off` (its shape), in the same unit and to first order; where the
    slope varies within that, the largest. None if no other operator may feed this one.
    """
    fed_regimes: tuple[str, ...] = ()
    """Regimes in which an activation may be another operator's output: whatever comes out there, this operator has an
    answer for.
    """

    def varied(self) -> Definition:
        """The same with other values of its scalars; itself if it knows none."""
        scalars = tuple(replace(s, default=s.default if s.other is None else s.other) for s in self.scalars)
        return self if scalars == self.scalars else replace(self, scalars=scalars)
