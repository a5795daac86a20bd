"""A linear layer on few tokens: `out = x @ weight.T`. It reads every weight for little work; decoding spends its
time here.

Shape suffixes: T tokens, K in features, N out features.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Generator, Tensor
from torch.nn import functional

from kernels import distributions
from kernels.definition import Cost, Definition, Role, TensorSpec


def reference(x_TK: Tensor, weight_NK: Tensor) -> tuple[Tensor, ...]:
    return (x_TK @ weight_NK.T,)


def eager(x_TK: Tensor, weight_NK: Tensor) -> tuple[Tensor, ...]:
    """As torch.nn.Linear without bias."""
    return (functional.linear(x_TK, weight_NK),)


def error_scale(x_TK: Tensor, weight_NK: Tensor) -> tuple[Tensor, ...]:
    """`|x| @ |weight|.T`, the condition of the dot product (Higham, Accuracy and Stability of Numerical Algorithms,
    3.1). An input may be off by what is negligible.
    """
    return ((x_TK.abs() + distributions.NEGLIGIBLE) @ weight_NK.abs().T,)


def sensitivity(position: int, off_TK: Tensor, x_TK: Tensor, weight_NK: Tensor) -> tuple[Tensor, ...]:
    return (off_TK @ weight_NK.abs().T,)


def make_inputs(generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
    in_features, out_features = axes["in_features"], axes["out_features"]
    x_TK = distributions.ACTIVATIONS[regime](generator, axes["tokens"], in_features)
    weight_NK = distributions.normal(generator, out_features, in_features) / in_features**0.5
    return distributions.rounded(dtype, x_TK, weight_NK)


def cost(axes: Mapping[str, int], item_bytes: int) -> Cost:
    """A product and a sum per weight and token; weights and activations in once, results out once."""
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    return Cost(
        flops=2 * tokens * in_features * out_features,
        bytes_read=(tokens * in_features + out_features * in_features) * item_bytes,
        bytes_written=tokens * out_features * item_bytes,
    )


def _axes(tokens: int, in_features: int, out_features: int) -> dict[str, int]:
    return {"tokens": tokens, "in_features": in_features, "out_features": out_features}


DEFINITION = Definition(
    name="skinny_linear",
    summary="Linear layer without bias on few tokens, the weight stored as torch.nn.Linear stores it",
    axes={
        "tokens": "rows, one per token of the step",
        "in_features": "summed over",
        "out_features": "results per token",
    },
    inputs=(
        TensorSpec("x_TK", ("tokens", "in_features")),
        TensorSpec("weight_NK", ("out_features", "in_features"), Role.WEIGHT),
    ),
    outputs=(TensorSpec("out_TN", ("tokens", "out_features")),),
    scalars=(),
    row_axis="tokens",
    constant_axes=("in_features", "out_features"),
    independent_axis="out_features",
    reference=reference,
    baselines={"eager": eager},
    error_scale=error_scale,
    sensitivity=sensitivity,
    make_inputs=make_inputs,
    regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    fed_regimes=("traffic", "large_offset", "small", "wide", "extreme", "nonfinite"),
    cost=cost,
    edge_axes=(
        _axes(1, 1, 1),
        _axes(3, 7, 5),
        _axes(1, 17, 33),
        _axes(2, 33, 17),
        _axes(17, 64, 31),
        _axes(4, 63, 15),
        _axes(7, 127, 23),
        _axes(5, 257, 65),
    ),
)
