"""What each operator takes and gives, as far as a serving host must know it to build a call.

The pipeline's definitions say the same and more; a test holds the two together, because the wheel stands alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorContract:
    """One tensor of an operator."""

    name: str
    dims: tuple[str, ...]
    """Axis names, outermost first."""
    weight: bool = False
    """Whether it changes only when a model is loaded, so that a kernel may pack it."""

    def shape(self, axes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(axes[dim] for dim in self.dims)


@dataclass(frozen=True)
class Contract:
    """Inputs, outputs and scalars in calling order. Exactly one axis varies from call to call."""

    operator: str
    variable_axis: str
    constant_axes: tuple[str, ...]
    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    scalars: tuple[str, ...] = ()

    @property
    def weight_index(self) -> int:
        """Position of the weight among the inputs; -1 if there is none."""
        return next((i for i, tensor in enumerate(self.inputs) if tensor.weight), -1)


_TH = ("tokens", "hidden")
_TI = ("tokens", "intermediate")
_TND = ("tokens", "query_heads", "head_dim")
_TMD = ("tokens", "key_heads", "head_dim")
_TD = ("tokens", "head_dim")
_RC = ("rows", "columns")

CONTRACTS: dict[str, Contract] = {
    contract.operator: contract
    for contract in (
        Contract(
            operator="rms_norm",
            variable_axis="tokens",
            constant_axes=("hidden",),
            inputs=(TensorContract("x_TH", _TH), TensorContract("weight_H", ("hidden",), weight=True)),
            outputs=(TensorContract("out_TH", _TH),),
            scalars=("eps",),
        ),
        Contract(
            operator="fused_add_rms_norm",
            variable_axis="tokens",
            constant_axes=("hidden",),
            inputs=(
                TensorContract("x_TH", _TH),
                TensorContract("residual_TH", _TH),
                TensorContract("weight_H", ("hidden",), weight=True),
            ),
            outputs=(TensorContract("out_TH", _TH), TensorContract("residual_out_TH", _TH)),
            scalars=("eps",),
        ),
        Contract(
            operator="silu_and_mul",
            variable_axis="tokens",
            constant_axes=("intermediate",),
            inputs=(TensorContract("gate_TI", _TI), TensorContract("up_TI", _TI)),
            outputs=(TensorContract("out_TI", _TI),),
        ),
        Contract(
            operator="rotary_embedding",
            variable_axis="tokens",
            constant_axes=("query_heads", "key_heads", "head_dim"),
            inputs=(
                TensorContract("q_TND", _TND),
                TensorContract("k_TMD", _TMD),
                TensorContract("cos_TD", _TD),
                TensorContract("sin_TD", _TD),
            ),
            outputs=(TensorContract("q_out_TND", _TND), TensorContract("k_out_TMD", _TMD)),
        ),
        Contract(
            operator="softmax",
            variable_axis="rows",
            constant_axes=("columns",),
            inputs=(TensorContract("x_RC", _RC),),
            outputs=(TensorContract("out_RC", _RC),),
        ),
        Contract(
            operator="skinny_linear",
            variable_axis="tokens",
            constant_axes=("in_features", "out_features"),
            inputs=(
                TensorContract("x_TK", ("tokens", "in_features")),
                TensorContract("weight_NK", ("out_features", "in_features"), weight=True),
            ),
            outputs=(TensorContract("out_TN", ("tokens", "out_features")),),
        ),
    )
}
