"""Inputs for a workload: tensors laid out exactly as traffic had them, and workloads that traffic did not show.

Values come from the definition's input distributions; this module decides shapes and memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.domain import Domain, Layout
from gristmill.workload import TensorLayout, Workload, dense
from kernels import layouts
from kernels.definition import DTYPES, Definition, TensorSpec
from kernels.errors import WorkloadError

if TYPE_CHECKING:
    from torch import Generator, Tensor

HELD_OUT_PER_WORKLOAD = 3
EDGE_ELEMENTS = 1 << 18
"""Input elements of an edge workload at most, unless the domain starts above: edges are many, and need not be large."""
MAX_EDGE_ELEMENTS = 1 << 23
"""... and at most where it does."""
ALL_EDGES_ELEMENTS = 1 << 24
"""Input elements of all edges of a candidate."""
THREADED_ELEMENTS = 1 << 16
"""Kernels commonly start their threads above this."""
FAR_ROWS = 3


def workload(definition: Definition, dtype: str, **axes: int) -> Workload:
    """The dense workload with these extents.

    Raises:
        WorkloadError: if an axis is missing, unknown or has no extent, or the dtype is not one of `DTYPES`.
    """
    _check_axes(definition, axes)
    ordered = {name: axes[name] for name in definition.axes}
    inputs = tuple(dense(tuple(ordered[axis] for axis in spec.dims), dtype) for spec in definition.inputs)
    made = Workload(operator=definition.name, dtype=dtype, axes=ordered, inputs=inputs)
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
        if layouts.overlaps(layout):
            raise _refuse(
                definition, f"{place}.strides", layout.strides, "elements that do not share memory, or stride 0"
            )


def is_valid(definition: Definition, workload: Workload) -> bool:
    """Whether `check_workload` returns."""
    try:
        check_workload(definition, workload)
    except WorkloadError:
        return False
    return True


def _check_axes(definition: Definition, axes: Mapping[str, int]) -> None:
    if set(axes) != set(definition.axes):
        raise _refuse(definition, "axes", ", ".join(axes) or "none", ", ".join(definition.axes))
    for name, extent in axes.items():
        if extent < 1:
            raise _refuse(definition, f"axes.{name}", extent, "an extent of at least 1")
        step = definition.axis_steps.get(name, 1)
        if extent % step:
            raise _refuse(definition, f"axes.{name}", extent, f"a multiple of {step}")


def _refuse(definition: Definition, field: str, found: object, expected: str) -> WorkloadError:
    return WorkloadError(f"workload of {definition.name}, {field}: found {found}, expected {expected}")


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
    """The values in that memory layout. Along an expanded dimension the first ones stand for all.

    Memory that a far layout skips is not touched, and holds what it held.
    """
    if layout.contiguous:
        return values.contiguous().as_strided(layout.shape, layout.strides)
    reach = layouts.span(layout)
    storage = values.new_empty((reach,))
    if reach <= layouts.FAR_ELEMENTS:
        storage.fill_(float("nan"))
    for dim, stride in enumerate(layout.strides):
        if stride == 0:
            values = values.narrow(dim, 0, 1)
    storage.as_strided(values.shape, layout.strides).copy_(values)
    return storage.as_strided(layout.shape, layout.strides)


def edge_workloads(definition: Definition, dtype: str, domain: Domain) -> list[Workload]:
    """Workloads at the edges, as far as the domain admits them: its own ends, the definition's edge sizes moved into
    it, and a call large enough for a kernel to start its threads.

    Where the domain admits more than dense inputs, the edge sizes come in every arrangement that it admits, each input
    of a call in another one. A function of its arguments alone; none twice; about a dozen. An edge has at most
    `EDGE_ELEMENTS`, or twice as many as the domain's smallest call.
    """
    bounds = _bounds(definition, domain)
    if bounds is None or not definition.edge_axes:
        return []
    sizes = [_fitted(axes, bounds) for axes in definition.edge_axes]
    ends = [workload(definition, dtype, **axes) for axes in _ends(sizes[0], bounds)]
    arranged = _arranged(definition, dtype, sizes, domain.layout)
    threaded = [workload(definition, dtype, **axes) for axes in _threaded(definition, sizes[-1], bounds)]
    limit = min(MAX_EDGE_ELEMENTS, max(EDGE_ELEMENTS, 2 * min(map(elements, ends))))
    made = {w.digest: w for w in (*ends, *arranged, *threaded)}
    admitted = [w for w in made.values() if domain.admits(w) and elements(w) <= limit]
    totals = itertools.accumulate(map(elements, admitted))
    return [w for w, total in zip(admitted, totals, strict=True) if total <= ALL_EDGES_ELEMENTS]


def far_workload(definition: Definition, dtype: str, domain: Domain) -> Workload | None:
    """A small call that spans more than an index of 32 bits: so far apart lie the rows of one input, the last of those
    with the most dimensions. More of them would take address space that a host may not grant.

    None if the domain admits dense inputs only, or no small call of at least `FAR_ROWS` rows.
    """
    bounds = _bounds(definition, domain)
    if bounds is None:
        return None
    for edge in definition.edge_axes:
        axes = _fitted(edge, bounds)
        if all(axes[name] >= FAR_ROWS for name in _variable(definition)):
            ranks = [len(spec.dims) for spec in definition.inputs]
            last = len(ranks) - 1 - ranks[::-1].index(max(ranks))
            variant = tuple(layouts.far if place == last else layouts.padded for place in range(len(ranks)))
            made = _rearranged(workload(definition, dtype, **axes), variant, domain.layout)
            return made if domain.admits(made) and is_far(made) and elements(made) <= EDGE_ELEMENTS else None
    return None


def is_far(workload: Workload) -> bool:
    """Whether few elements lie more than `layouts.FAR_ELEMENTS` apart: their memory must be mapped sparsely."""
    reach = max(map(layouts.span, workload.inputs), default=0)
    return reach > layouts.FAR_ELEMENTS and elements(workload) <= MAX_EDGE_ELEMENTS


def enlarged_axes(definition: Definition, elements: int) -> dict[str, int]:
    """The definition's last edge sizes, the smallest doubled until every output has at least so many elements."""
    axes = dict(definition.edge_axes[-1])
    while min(_size(spec, axes) for spec in definition.outputs) < elements:
        axes[min(axes, key=axes.__getitem__)] *= 2
    return axes


@dataclasses.dataclass(frozen=True)
class _Bound:
    """What a domain admits of one axis: from `low` to `high` in steps."""

    low: int
    high: int
    step: int

    def nearest(self, extent: int) -> int:
        return min(max(self.upward(extent), self.low), self.high)

    def upward(self, extent: int) -> int:
        return -(-extent // self.step) * self.step


def _bounds(definition: Definition, domain: Domain) -> dict[str, _Bound] | None:
    """By the axes that the domain restricts, both ends admitted. None if some axis admits nothing."""
    bounds: dict[str, _Bound] = {}
    for r in domain.ranges:
        known = bounds.get(r.name, _Bound(1, sys.maxsize, definition.axis_steps.get(r.name, 1)))
        step = math.lcm(r.multiple, known.step)
        low, high = max(r.low, known.low), min(r.high, known.high)
        bounds[r.name] = _Bound(-(-low // step) * step, high // step * step, step)
    return bounds if all(bound.low <= bound.high for bound in bounds.values()) else None


def _fitted(axes: Mapping[str, int], bounds: Mapping[str, _Bound]) -> dict[str, int]:
    """Every extent moved to the nearest one that is admitted, upwards if there is one."""
    return {name: bounds[name].nearest(extent) if name in bounds else extent for name, extent in axes.items()}


def _ends(axes: Mapping[str, int], bounds: Mapping[str, _Bound]) -> list[dict[str, int]]:
    """The domain's smallest call, the next, the largest, and the largest of each axis by itself. Other axes as given"""
    named = {name: bound for name, bound in bounds.items() if name in axes}
    low = {**axes, **{name: bound.low for name, bound in named.items()}}
    following = {name: min(bound.low + bound.step, bound.high) for name, bound in named.items()}
    high = {name: bound.high for name, bound in named.items()}
    return [low, {**low, **following}, {**low, **high}, *({**low, name: extent} for name, extent in high.items())]


def _threaded(
    definition: Definition, axes: Mapping[str, int], bounds: Mapping[str, _Bound]
) -> Iterable[dict[str, int]]:
    """The call, enlarged along the first axis that can do it until one tensor has more than `THREADED_ELEMENTS`."""
    specs = (*definition.inputs, *definition.outputs)
    for name in (*_variable(definition), *definition.constant_axes):
        per_place = max(_size(spec, axes) for spec in specs if name in spec.dims) // axes[name]
        bound = bounds.get(name, _Bound(1, sys.maxsize, definition.axis_steps.get(name, 1)))
        extent = bound.nearest(THREADED_ELEMENTS // per_place + 1)
        if per_place * extent > THREADED_ELEMENTS:
            return [{**axes, name: extent}]
    return []


def _variable(definition: Definition) -> list[str]:
    """Axes that vary from call to call."""
    return [name for name in definition.axes if name not in definition.constant_axes]


def _variants(layout: Layout) -> list[tuple[layouts.Arrangement, ...]]:
    """Arrangements of the inputs, in order and in turn. Every input meets every arrangement that the layout admits."""
    if layout is Layout.CONTIGUOUS:
        return []
    apart = layouts.ROWS_APART if layout is Layout.INNER_CONTIGUOUS else layouts.COLUMNS_APART + layouts.ROWS_APART
    return [(layouts.fused,), *(apart[start:] + apart[:start] for start in range(len(apart)))]


def _arranged(
    definition: Definition,
    dtype: str,
    sizes: Sequence[Mapping[str, int]],
    admitted: Layout,
) -> list[Workload]:
    """The sizes, the last of those with several rows in the variants, the others dense."""
    variants = _variants(admitted)
    several = [i for i, axes in enumerate(sizes) if all(axes[name] > 1 for name in _variable(definition))]
    places = several or range(len(sizes))
    taken = [(places[-1 - number % len(places)], variant) for number, variant in enumerate(variants)]
    made = [workload(definition, dtype, **axes) for axes in sizes]
    dense_ones = [w for i, w in enumerate(made) if i not in {place for place, _ in taken}]
    return dense_ones + [_rearranged(made[place], variant, admitted) for place, variant in taken]


def _rearranged(workload: Workload, variant: tuple[layouts.Arrangement, ...], admitted: Layout) -> Workload:
    """The dense workload with each input in the variant's arrangement, where that is admitted."""
    arranged = [
        variant[position % len(variant)](tensor.shape, tensor.dtype, position)
        for position, tensor in enumerate(workload.inputs)
    ]
    kept = [new if admitted.admits(new) else old for new, old in zip(arranged, workload.inputs, strict=True)]
    return dataclasses.replace(workload, inputs=tuple(kept))


def _size(spec: TensorSpec, axes: Mapping[str, int]) -> int:
    return math.prod(axes[name] for name in spec.dims)


def elements(workload: Workload) -> int:
    """Elements of all inputs; expanded dimensions count in full."""
    return sum(math.prod(layout.shape) for layout in workload.inputs)


def held_out(definition: Definition, workloads: Sequence[Workload], rng: random.Random) -> list[Workload]:
    """Neighbours of captured workloads that no agent has seen: axes that vary from call to call moved by up to a half.

    Axes that the model fixes stay. Strided inputs keep their strides, or larger ones where the new shape needs
    them. At most `HELD_OUT_PER_WORKLOAD` for each captured one, none of them captured, none twice; counts are zero.
    """
    seen = {(w.dtype, tuple(w.axes.items())) for w in workloads}
    neighbours: list[Workload] = []
    for captured in workloads:
        candidates = _neighbouring_axes(definition, captured)
        rng.shuffle(candidates)
        fresh = [axes for axes in candidates if (captured.dtype, tuple(axes.items())) not in seen]
        for axes in fresh[:HELD_OUT_PER_WORKLOAD]:
            seen.add((captured.dtype, tuple(axes.items())))
            neighbour = workload(definition, captured.dtype, **axes)
            laid = [layouts.like(old, new.shape) for old, new in zip(captured.inputs, neighbour.inputs, strict=True)]
            neighbours.append(dataclasses.replace(neighbour, inputs=tuple(laid)))
    return neighbours


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
