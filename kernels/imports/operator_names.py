"""Which of torch's, vLLM's and SGLang's operators are ours, and with which axes: from the shapes a profiler recorded.

An operator is taken for one of ours only where all that decides is recorded: a product counts as a linear layer if its
second matrix is stored as weights are, a softmax if it is over the last dimension. Everything else stays uncovered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gristmill.contract import CONTRACTS
from gristmill.workload import TensorLayout, dense
from kernels.definition import DTYPES
from kernels.errors import WorkloadError
from kernels.imports.imported import pattern_of
from kernels.tally import Pattern

TORCH_TYPES = {"float": "float32", "c10::BFloat16": "bfloat16"}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class RecordedCall:
    """What a profiler recorded of a call's arguments, in order; empty where an argument is no tensor."""

    shapes: tuple[Shape, ...]
    strides: tuple[Shape, ...]
    """Empty if it recorded none."""
    types: tuple[str, ...]
    values: tuple[str, ...]
    """Of scalars, as text; empty if it recorded none."""

    def shape(self, position: int) -> Shape:
        return self.shapes[position] if position < len(self.shapes) else ()

    def stride(self, position: int) -> Shape:
        """As recorded, or dense."""
        shape = self.shape(position)
        found = self.strides[position] if position < len(self.strides) else ()
        return found if len(found) == len(shape) and found else dense(shape, "float32").strides

    def value(self, position: int) -> str:
        return self.values[position] if position < len(self.values) else ""


class _Found(NamedTuple):
    """One of our operators, as a call of another name meant it."""

    operator: str
    main: int
    """The argument whose type is the operator's."""
    axes: dict[str, int]
    inputs: tuple[tuple[Shape, Shape], ...]
    """Shape and strides per input of ours."""


Rule = Callable[[RecordedCall], _Found | None]


def recognised(name: str, call: RecordedCall) -> Pattern | None:
    """Our call pattern for a recorded call; None if it is no operator of ours, or none that can be sure."""
    rule = RULES.get(name)
    found = rule(call) if rule is not None else None
    if found is None or min(found.axes.values()) < 1 or any(min(stride, default=0) < 0 for _, stride in found.inputs):
        return None
    dtype = TORCH_TYPES.get(call.types[found.main] if found.main < len(call.types) else "")
    if dtype not in DTYPES:
        return None
    contract = CONTRACTS[found.operator]
    layouts = tuple(
        _layout(tensor.shape(found.axes), shape, strides, dtype)
        for tensor, (shape, strides) in zip(contract.inputs, found.inputs, strict=True)
    )
    ordered = {axis: found.axes[axis] for axis in (contract.variable_axis, *contract.constant_axes)}
    try:
        return pattern_of(found.operator, dtype, ordered, layouts)
    except WorkloadError:
        return None


def _layout(expected: Shape, shape: Shape, strides: Shape, dtype: str) -> TensorLayout:
    """Leading dimensions of dense tensors are folded, as hosts do it."""
    recorded = TensorLayout(shape, strides, dtype)
    return dense(expected, dtype) if recorded.contiguous else recorded


def _at(call: RecordedCall, *positions: int) -> tuple[tuple[Shape, Shape], ...]:
    return tuple((call.shape(position), call.stride(position)) for position in positions)


def _leading(shape: Shape) -> int:
    return math.prod(shape[:-1])


def _linear(call: RecordedCall) -> _Found | None:
    x, weight = call.shape(0), call.shape(1)
    if len(x) < 2 or len(weight) != 2 or call.shape(2) or x[-1] != weight[1]:
        return None
    axes = {"tokens": _leading(x), "in_features": weight[1], "out_features": weight[0]}
    return _Found("skinny_linear", 0, axes, _at(call, 0, 1))


def _product(call: RecordedCall) -> _Found | None:
    """`mm(x, weight.t())`."""
    x, turned = call.shape(0), call.shape(1)
    if len(x) != 2 or len(turned) != 2 or x[1] != turned[0] or not call.strides or call.stride(1) != (1, turned[0]):
        return None
    axes = {"tokens": x[0], "in_features": x[1], "out_features": turned[1]}
    weight = (turned[1], turned[0])
    return _Found("skinny_linear", 0, axes, (*_at(call, 0), (weight, (turned[0], 1))))


def _norm(x: int, weight: int) -> Rule:
    def rule(call: RecordedCall) -> _Found | None:
        shape = call.shape(x)
        if len(shape) < 2 or call.shape(weight) != shape[-1:]:
            return None
        return _Found("rms_norm", x, {"tokens": _leading(shape), "hidden": shape[-1]}, _at(call, x, weight))

    return rule


def _fused_norm(call: RecordedCall) -> _Found | None:
    """`(x, residual, weight, eps)`, in place."""
    shape = call.shape(0)
    if len(shape) < 2 or call.shape(1) != shape or call.shape(2) != shape[-1:]:
        return None
    axes = {"tokens": _leading(shape), "hidden": shape[-1]}
    return _Found("fused_add_rms_norm", 0, axes, _at(call, 0, 1, 2))


def _silu(call: RecordedCall) -> _Found | None:
    """`(out, gate and up side by side)`."""
    out, both = call.shape(0), call.shape(1)
    if len(out) < 2 or both != (*out[:-1], 2 * out[-1]):
        return None
    shape, strides = (_leading(out), out[-1]), (both[-1], 1)
    return _Found("silu_and_mul", 0, {"tokens": shape[0], "intermediate": shape[1]}, ((shape, strides),) * 2)


def _rotary(call: RecordedCall) -> _Found | None:
    """vLLM's `(positions, query, key, head size, cosines and sines, neox)`, all of a head turned."""
    query, key, tables, size = call.shape(1), call.shape(2), call.shape(4), call.value(3)
    if not size.isdecimal() or len(query) != 2 or len(key) != 2 or call.value(5) != "True" or len(tables) != 2:
        return None
    dim = int(size)
    if not dim or query[1] % dim or key[1] % dim or tables[1] != dim or query[0] != key[0]:
        return None
    axes = {"tokens": query[0], "query_heads": query[1] // dim, "key_heads": key[1] // dim, "head_dim": dim}
    shapes = [(query[0], query[1] // dim, dim), (key[0], key[1] // dim, dim), (query[0], dim), (query[0], dim)]
    return _Found("rotary_embedding", 1, axes, tuple((shape, dense(shape, "float32").strides) for shape in shapes))


def _softmax(call: RecordedCall) -> _Found | None:
    x, dim = call.shape(0), call.value(1)
    if len(x) < 2 or dim not in ("-1", str(len(x) - 1)):
        return None
    return _Found("softmax", 0, {"rows": _leading(x), "columns": x[-1]}, _at(call, 0))


def _own(operator: str) -> Rule:
    """`torch.ops.gristmill`'s, whose arguments are the contract's."""
    contract = CONTRACTS[operator]

    def rule(call: RecordedCall) -> _Found | None:
        axes: dict[str, int] = {}
        for position, tensor in enumerate(contract.inputs):
            shape = call.shape(position)
            kept = shape[len(shape) - len(tensor.dims) + 1 :] if len(shape) >= len(tensor.dims) else ()
            leading = math.prod(shape[: len(shape) - len(kept)])
            if len(kept) != len(tensor.dims) - 1:
                return None
            for dim, extent in zip(tensor.dims, (leading, *kept), strict=True):
                if axes.setdefault(dim, extent) != extent:
                    return None
        return _Found(operator, 0, axes, _at(call, *range(len(contract.inputs))))

    return rule


RULES: Mapping[str, Rule] = {
    "aten::linear": _linear,
    "aten::mm": _product,
    "aten::rms_norm": _norm(0, 2),
    "aten::_fused_rms_norm": _norm(0, 2),
    "aten::softmax": _softmax,
    "aten::_softmax": _softmax,
    "_C::rms_norm": _norm(1, 2),
    "_C::fused_add_rms_norm": _fused_norm,
    "_C::silu_and_mul": _silu,
    "_C::rotary_embedding": _rotary,
    "sgl_kernel::rmsnorm": _norm(1, 2),
    "sgl_kernel::fused_add_rmsnorm": _fused_norm,
    "sgl_kernel::silu_and_mul": _silu,
    **{f"gristmill::{operator}": _own(operator) for operator in CONTRACTS},
}
"""By the name that a profiler gives. `_C` is vLLM's library."""
