"""Where inputs come from and what should come out: base draws of a workload, spliced into ever new values.

A base draw costs a random number per element; a splice of two draws at a random place costs a copy. No call sees
values that an earlier call has seen, and whoever samples a few of them to recognise an input is wrong about the rest.

Shape suffixes: S sets, then the tensor's own dimensions.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gristmill import records
from gristmill.workload import Workload
from harness.arena import Arena, Layout
from harness.comparer import ErrorFacts, Expected, measure, merge
from kernels.definition import Definition, Role
from kernels.inputs import materialise

BASE_DRAWS = 6
BASE_DRAWS_LARGE = 2
LARGE_ELEMENTS = 1 << 20
COPIED_ELEMENTS = 1 << 14
KEPT_WEIGHT_BYTES = 512 << 20
MIN_PLACES = 64
"""Of the independent axis, in a part."""
PART_ELEMENTS = 1 << 20
"""Of the weights that a baseline's errors are sampled on, where a part of them will do."""
FACT_ELEMENTS = 4096
"""The baseline's errors are sampled over at least so many output elements, where few draws suffice for it."""
MAX_FACT_SAMPLES = 24


class WeightBank:
    """Base draws of large weights, shared by the workloads and regimes that have the same ones."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kept: OrderedDict[str, Tensor] = OrderedDict()

    def bases(self, definition: Definition, workload: Workload, index: int) -> Tensor:
        """`BASE_DRAWS_LARGE` values of one weight, dense: a function of the seed and the weight's shape alone."""
        spec = definition.inputs[index]
        shape = {axis: workload.axes[axis] for axis in spec.dims}
        key = records.digest([definition.name, workload.dtype, index, shape])
        if key not in self._kept:
            self._make_room()
            generator = Generator().manual_seed(int(records.digest([self._seed, key])[:15], 16))
            axes = {axis: shape.get(axis, 1) for axis in definition.axes}
            draws = [
                definition.make_inputs(generator, axes, workload.dtype, definition.regimes[0])[index]
                for _ in range(BASE_DRAWS_LARGE)
            ]
            self._kept[key] = torch.stack(draws)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _make_room(self) -> None:
        while sum(base.nbytes for base in self._kept.values()) > KEPT_WEIGHT_BYTES:
            self._kept.popitem(last=False)


class Draws:
    """Inputs, references and the baseline's own errors of one workload in one regime, from one seed."""

    def __init__(
        self,
        definition: Definition,
        workload: Workload,
        regime: str,
        seed: int,
        traffic: Draws | None = None,
        bank: WeightBank | None = None,
    ) -> None:
        self.definition = definition
        self.workload = workload
        self.regime = regime
        self.seed = seed
        self._traffic = traffic
        self._scalars = tuple(scalar.default for scalar in definition.scalars)
        self._generator = Generator().manual_seed(seed)
        self._bank = bank or WeightBank(seed)
        self._bases = self._draw_bases()

    def _draw_bases(self) -> list[Tensor]:
        """Per input, `BASE_DRAWS` values: base, then the tensor's dimensions, dense."""
        if self.definition.independent_axis:
            return self._draw_apart()
        elements = max(math.prod(layout.shape) for layout in self.workload.inputs)
        count = BASE_DRAWS_LARGE if elements >= LARGE_ELEMENTS else BASE_DRAWS
        draws = [materialise(self.definition, self.workload, self.regime, self._generator) for _ in range(count)]
        return [torch.stack([draw[index] for draw in draws]) for index in range(len(draws[0]))]

    def _draw_apart(self) -> list[Tensor]:
        """Activations are drawn beside weights of one row; the weights come from the bank."""
        definition, workload = self.definition, self.workload
        axes = {**workload.axes, definition.independent_axis: 1}
        draws = [definition.make_inputs(self._generator, axes, workload.dtype, self.regime) for _ in range(BASE_DRAWS)]
        return [
            self._bank.bases(definition, workload, index)
            if spec.role is Role.WEIGHT
            else torch.stack([draw[index] for draw in draws])
            for index, spec in enumerate(definition.inputs)
        ]

    @property
    def size_bytes(self) -> int:
        """Without what the bank holds."""
        owned = [not (self.definition.independent_axis and s.role is Role.WEIGHT) for s in self.definition.inputs]
        return sum(base.nbytes for base, own in zip(self._bases, owned, strict=True) if own)

    def fill(self, arena: Arena, numbers: Tensor, indices: Sequence[int], generator: Generator) -> None:
        """New values for the inputs `indices` of those sets, in place. The generator decides where the splices are."""
        for index in indices:
            base = self._bases[index]
            target = arena.tensors[index]
            for start in range(0, len(numbers), max(1, LARGE_ELEMENTS // base[0].numel())):
                part = numbers[start : start + max(1, LARGE_ELEMENTS // base[0].numel())]
                _write(target, part, _splice(base, len(part), generator), self.workload.inputs[index].strides)

    def expected(self, inputs: Sequence[Tensor]) -> list[Expected]:
        """What S sets of inputs should give."""
        exact = [tensor.to(torch.float64) for tensor in inputs]
        values = _batched(self.definition.reference, exact, self._scalars)
        scales = _batched(self.definition.error_scale, exact, self._scalars)
        dtype = getattr(torch, self.workload.dtype)
        return [Expected(value, scale, dtype) for value, scale in zip(values, scales, strict=True)]

    @functools.cached_property
    def facts(self) -> tuple[ErrorFacts, ...]:
        """Errors of the production baseline, per output: in this regime or in traffic, whichever are larger.

        In a stress regime the baseline may happen to be exact (ties sum without rounding); that obliges nobody.
        """
        baseline = self.definition.baselines["eager"]
        generator = Generator().manual_seed(self.seed + 1)
        outputs = sum(math.prod([self.workload.axes[axis] for axis in s.dims]) for s in self.definition.outputs)
        samples = min(MAX_FACT_SAMPLES, max(2, -(-FACT_ELEMENTS // outputs)))
        found: list[list[ErrorFacts]] = []
        with torch.inference_mode():
            for _ in range(samples):
                inputs = [_splice(base, 1, generator) for base in self._bases]
                results = baseline(*(tensor[0] for tensor in inputs), *self._scalars)
                part = choose_part(self.definition, self.workload, PART_ELEMENTS, generator)
                expected = self.expected(part.of_inputs(inputs))
                outputs_S = part.of_outputs([result[None] for result in results])
                found.append([measure(r, e) for r, e in zip(outputs_S, expected, strict=True)])
        if self._traffic is not None:
            found.append(list(self._traffic.facts))
        return tuple(merge(facts) for facts in zip(*found, strict=True))


@dataclass(frozen=True)
class Part:
    """Some places along a definition's independent axis, in order; all of them where `places` is None."""

    definition: Definition
    places: Tensor | None = None

    def of_inputs(self, tensors: Sequence[Tensor], numbers: Tensor | None = None) -> list[Tensor]:
        """Dense copies: of those sets, or of all, of these places."""
        return self._take(tensors, [spec.dims for spec in self.definition.inputs], numbers)

    def of_outputs(self, tensors: Sequence[Tensor], numbers: Tensor | None = None) -> list[Tensor]:
        """Likewise."""
        return self._take(tensors, [spec.dims for spec in self.definition.outputs], numbers)

    def whole_index(self, dims: Sequence[str], index: tuple[int, ...]) -> tuple[int, ...]:
        """Where an element of a part lies in the whole tensor."""
        if self.places is None:
            return index
        axis = self.definition.independent_axis
        return tuple(int(self.places[i]) if dim == axis else i for dim, i in zip(dims, index, strict=True))

    def _take(self, tensors: Sequence[Tensor], dims: Sequence[tuple[str, ...]], numbers: Tensor | None) -> list[Tensor]:
        axis = self.definition.independent_axis
        taken = []
        for tensor, names in zip(tensors, dims, strict=True):
            if self.places is None or axis not in names:
                taken.append(tensor if numbers is None else tensor[numbers])
            elif names[0] == axis:  # the weights: never copied whole
                sets = torch.arange(tensor.shape[0]) if numbers is None else numbers
                taken.append(tensor[sets[:, None], self.places])
            else:
                chosen = tensor if numbers is None else tensor[numbers]
                taken.append(chosen.index_select(1 + names.index(axis), self.places))
        return taken


def choose_part(definition: Definition, workload: Workload, elements: int, generator: Generator) -> Part:
    """A random part of about so many elements of the weights, at least `MIN_PLACES` places; everything if it is no
    larger.
    """
    axis = definition.independent_axis
    if not axis:
        return Part(definition)
    extent = workload.axes[axis]
    per_place = sum(math.prod(layout.shape) for layout in workload.inputs) / extent
    count = max(MIN_PLACES, int(elements / per_place))
    if count >= extent:
        return Part(definition)
    return Part(definition, torch.randperm(extent, generator=generator)[:count].sort().values)


def activations(layout: Layout) -> list[int]:
    """Which inputs change with each call."""
    return [index for index, weight in enumerate(layout.weights) if not weight]


def weights(layout: Layout) -> list[int]:
    """Which inputs change only when a model is loaded."""
    return [index for index, weight in enumerate(layout.weights) if weight]


def _splice(base: Tensor, count: int, generator: Generator) -> Tensor:
    """`count` values, each the head of one base draw and the tail of another."""
    bases, elements = base.shape[0], base[0].numel()
    flat = base.reshape(bases, elements)
    first = torch.randint(0, bases, (count,), generator=generator)
    second = (first + torch.randint(1, bases, (count,), generator=generator)) % bases
    cuts = torch.randint(0, elements, (count, 1), generator=generator, dtype=torch.int32)
    if elements >= COPIED_ELEMENTS:  # two copies beat a mask
        spliced = torch.empty((count, elements), dtype=base.dtype)
        for row, head, tail, cut in zip(spliced, first.tolist(), second.tolist(), cuts[:, 0].tolist(), strict=True):
            row[:cut] = flat[head, :cut]
            row[cut:] = flat[tail, cut:]
        return spliced.reshape(count, *base.shape[1:])
    heads = torch.arange(elements, dtype=torch.int32)[None] < cuts
    return torch.where(heads, flat[first], flat[second]).reshape(count, *base.shape[1:])


def _write(target: Tensor, numbers: Tensor, values: Tensor, strides: Sequence[int]) -> None:
    """Copies into the sets; along an expanded dimension the first values stand for all."""
    for dim, stride in enumerate(strides, start=1):
        if stride == 0 and target.shape[dim] > 1:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    target[numbers] = values


def _batched(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], scalars: Sequence[float]
) -> list[Tensor]:
    """The function for all sets at once."""
    with torch.inference_mode():
        if inputs[0].shape[0] == 1:
            return [value[None] for value in function(*(tensor[0] for tensor in inputs), *scalars)]
        over_sets = (*(0 for _ in inputs), *(None for _ in scalars))
        return list(torch.func.vmap(function, in_dims=over_sets)(*inputs, *scalars))
