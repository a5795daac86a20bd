"""Inputs for a workload: tensors laid out exactly as traffic had them, and workloads that traffic did not show.

Values come from the definition's input distributions; this module decides shapes and memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.domain import Domain
from gristmill.workload import ITEM_BYTES, TensorLayout, Workload, dense
from kernels.definition import DTYPES, Definition
from kernels.errors import WorkloadError

if TYPE_CHECKING:
    from torch import Generator, Tensor

HELD_OUT_PER_WORKLOAD = 3
EDGE_ELEMENTS = 1 << 23
"""Input elements of an edge workload at most: edges are many, and need not be large."""


def workload(definition: Definition, dtype: str, **axes: int) -> Workload:
    """The dense workload with these extents.

    Raises:
        WorkloadError: if an axis is missing, unknown or has no extent, or the dtype is not one of `DTYPES`.
    """
    _check_axes(definition, axes)
    ordered = {name: axes[name] for name in definition.axes}
    layouts = tuple(dense(tuple(ordered[axis] for axis in spec.dims), dtype) for spec in definition.inputs)
    made = Workload(operator=definition.name, dtype=dtype, axes=ordered, inputs=layouts)
    check_workload(definition, made)
    return made


def check_workload(definition: Definition, workload: Workload) -> None:
    """Returns if the workload is a call of this operator.

    Raises:
        WorkloadError: naming the first field that does not fit, what it holds and what was expected.
    """
    if workload.operator != definition.name:
        raise WorkloadError(f"workload.operator: found {workload.operator!r}, expected {definition.name!r}")
    if workload.dtype not in DTYPES:
        raise _refuse(definition, "dtype", workload.dtype, "one of " + ", ".join(DTYPES))
    _check_axes(definition, workload.axes)
    if len(workload.inputs) != len(definition.inputs):
        raise _refuse(definition, "inputs", f"{len(workload.inputs)} layouts", f"{len(definition.inputs)}")
    for index, (spec, layout) in enumerate(zip(definition.inputs, workload.inputs, strict=True)):
        place = f"inputs[{index}] ({spec.name})"
        shape = tuple(workload.axes[axis] for axis in spec.dims)
        if layout.shape != shape:
            raise _refuse(definition, f"{place}.shape", layout.shape, f"{shape} from the axes")
        if layout.dtype != workload.dtype:
            raise _refuse(definition, f"{place}.dtype", layout.dtype, workload.dtype)
        if len(layout.strides) != len(shape) or any(stride < 0 for stride in layout.strides):
            raise _refuse(definition, f"{place}.strides", layout.strides, f"{len(shape)} strides of at least 0")
        if _overlaps(layout):
            raise _refuse(
                definition, f"{place}.strides", layout.strides, "elements that do not share memory, or stride 0"
            )


def _check_axes(definition: Definition, axes: Mapping[str, int]) -> None:
    if set(axes) != set(definition.axes):
        raise _refuse(definition, "axes", ", ".join(axes) or "none", ", ".join(definition.axes))
    for name, extent in axes.items():
        if extent < 1:
            raise _refuse(definition, f"axes.{name}", extent, "an extent of at least 1")


def _refuse(definition: Definition, field: str, found: object, expected: str) -> WorkloadError:
    return WorkloadError(f"workload of {definition.name}, {field}: found {found}, expected {expected}")


def _overlaps(layout: TensorLayout) -> bool:
    """Whether distinct elements may share an address, other than along expanded dimensions (stride 0).

    Each dimension must step over everything that the finer ones reach; true of all slices and permutations of a
    dense tensor.
    """
    reach = 0
    for stride, extent in sorted(zip(layout.strides, layout.shape, strict=True)):
        if extent == 1 or stride == 0:
            continue
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def span(layout: TensorLayout) -> int:
    """Elements of storage that the layout reaches, from its first to its last."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True))


def distinct_bytes(layout: TensorLayout) -> int:
    """Bytes of memory that the layout reads: expanded dimensions count once."""
    elements = 1
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        elements *= extent if stride else 1
    return elements * ITEM_BYTES[layout.dtype]


def materialise(definition: Definition, workload: Workload, regime: str, generator: Generator) -> tuple[Tensor, ...]:
    """Fresh tensors for one call: the workload's shapes, strides and dtypes, values drawn from the regime.

    Memory between the elements of a strided tensor holds NaN, so that a kernel which reads it shows. Each tensor
    owns its storage.

    Raises:
        WorkloadError: if the workload does not fit the definition, or the regime is not one of the definition's.
    """
    check_workload(definition, workload)
    if regime not in definition.regimes:
        raise _refuse(definition, "regime", regime, "one of " + ", ".join(definition.regimes))
    values = definition.make_inputs(generator, workload.axes, workload.dtype, regime)
    return tuple(place(tensor, layout) for tensor, layout in zip(values, workload.inputs, strict=True))


def place(values: Tensor, layout: TensorLayout) -> Tensor:
    """The values in that memory layout. Along an expanded dimension the first ones stand for all."""
    if layout.contiguous:
        return values.contiguous().as_strided(layout.shape, layout.strides)
    storage = values.new_full((span(layout),), float("nan"))
    for dim, stride in enumerate(layout.strides):
        if stride == 0:
            values = values.narrow(dim, 0, 1)
    storage.as_strided(values.shape, layout.strides).copy_(values)
    return storage.as_strided(layout.shape, layout.strides)


def edge_workloads(definition: Definition, dtype: str, domain: Domain) -> list[Workload]:
    """Dense workloads at the edges, as far as the domain admits them: the definition's edge sizes and the domain's
    own ends.

    Where the domain leaves a model's sizes no freedom, the edge extents of the other axes are tried at those sizes.
    """
    low = {r.name: -(-r.low // r.multiple) * r.multiple for r in domain.ranges if r.name in definition.axes}
    high = {r.name: r.high // r.multiple * r.multiple for r in domain.ranges if r.name in definition.axes}
    model = {name: extent for name, extent in low.items() if name in definition.constant_axes}
    at_model_sizes = [{**edge, **model} for edge in definition.edge_axes]
    ends = [{**at_model_sizes[0], **low}, {**at_model_sizes[0], **high, **model}] if at_model_sizes else []
    sizes = [*map(dict, definition.edge_axes), *at_model_sizes, *ends]
    made = [workload(definition, dtype, **axes) for axes in sizes if min(axes.values()) > 0]
    admitted = {w.digest: w for w in made if domain.admits(w) and _elements(w) <= EDGE_ELEMENTS}
    return list(admitted.values())


def _elements(workload: Workload) -> int:
    return sum(math.prod(layout.shape) for layout in workload.inputs)


def held_out(definition: Definition, workloads: Sequence[Workload], rng: random.Random) -> list[Workload]:
    """Neighbours of captured workloads that no agent has seen: axes that vary from call to call moved by up to a half.

    Axes that the model fixes stay. Strided inputs keep their strides where the new shape allows it, the others are
    dense. At most `HELD_OUT_PER_WORKLOAD` for each captured one, none of them captured, none twice; counts are zero.
    """
    seen = {(w.dtype, tuple(w.axes.items())) for w in workloads}
    neighbours: list[Workload] = []
    for captured in workloads:
        candidates = _neighbouring_axes(definition, captured)
        rng.shuffle(candidates)
        fresh = [axes for axes in candidates if (captured.dtype, tuple(axes.items())) not in seen]
        for axes in fresh[:HELD_OUT_PER_WORKLOAD]:
            seen.add((captured.dtype, tuple(axes.items())))
            neighbours.append(_like(captured, workload(definition, captured.dtype, **axes)))
    return neighbours


def _like(captured: Workload, neighbour: Workload) -> Workload:
    """The neighbour with the captured strides, input by input, unless the new shape would overlap itself with them."""
    layouts = []
    for old, new in zip(captured.inputs, neighbour.inputs, strict=True):
        strided = dataclasses.replace(new, strides=old.strides)
        layouts.append(new if old.contiguous or _overlaps(strided) else strided)
    return dataclasses.replace(neighbour, inputs=tuple(layouts))


def _neighbouring_axes(definition: Definition, captured: Workload) -> list[dict[str, int]]:
    """All moves of the variable axes to nearby extents: one or two steps, or an eighth, a quarter or a half, either
    way.
    """
    choices = []
    for name in definition.axes:
        extent = captured.axes[name]
        if name in definition.constant_axes:
            choices.append([extent])
            continue
        steps = {1, 2, extent // 8, extent // 4, extent // 2}
        choices.append(sorted({max(1, extent + sign * step) for step in steps for sign in (-1, 1)}))
    return [dict(zip(definition.axes, extents, strict=True)) for extents in itertools.product(*choices)]
