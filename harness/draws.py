"""Where inputs come from and what should come out: base draws, their references, and the baseline's own errors.

Drawing and computing references is dear; so both are kept, and serve many candidates, none of which lives long enough
to see them twice. What timed calls see is spliced from base draws and changed with every call: see `stock.py`.

Shape suffixes: S sets, then the tensor's own dimensions.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from gristmill import records
from gristmill.workload import Workload
from harness import yardstick
from harness.comparer import ErrorFacts, Expected, measure, merge
from kernels.definition import Definition, Role

BASE_DRAWS = 6
BASE_DRAWS_LARGE = 2
STRESS_DRAWS = 3
LARGE_ELEMENTS = 1 << 20
KEPT_ELEMENTS = 1 << 18
"""Of an output: references of larger ones are computed again each time."""
KEPT_WEIGHT_BYTES = 512 << 20
MIN_PLACES = 64
"""Of the independent axis, in a part."""
PART_ELEMENTS = 1 << 20
"""Of the weights that a baseline's errors are sampled on, where a part of them will do."""
FACT_ELEMENTS = 4096
"""The baseline's errors are sampled over at least so many output elements, where few draws suffice for it."""
MAX_FACT_SAMPLES = 24
PLAIN_SAMPLES = 2
"""Of those, on which a plain loop's errors count as well."""


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
        self.bases = self._draw_bases()
        """Per input: base draw, then the tensor's dimensions, dense."""

    @property
    def count(self) -> int:
        """Base draws that there are of every input."""
        return min(base.shape[0] for base in self.bases)

    def _draw_bases(self) -> list[Tensor]:
        if self.definition.independent_axis:
            return self._draw_apart()
        elements = max(math.prod(layout.shape) for layout in self.workload.inputs)
        count = BASE_DRAWS_LARGE if elements >= LARGE_ELEMENTS else BASE_DRAWS
        if self._traffic is not None:
            count = min(count, STRESS_DRAWS)
        draws = [self._draw(self.workload.axes) for _ in range(count)]
        return [torch.stack([draw[index] for draw in draws]) for index in range(len(draws[0]))]

    def _draw_apart(self) -> list[Tensor]:
        """Activations are drawn beside weights of one row; the weights come from the bank."""
        definition, workload = self.definition, self.workload
        draws = [self._draw({**workload.axes, definition.independent_axis: 1}) for _ in range(BASE_DRAWS)]
        return [
            _expanded(self._bank.bases(definition, workload, index), (1, *workload.inputs[index].strides)).contiguous()
            if spec.role is Role.WEIGHT
            else torch.stack([draw[index] for draw in draws])
            for index, spec in enumerate(definition.inputs)
        ]

    def _draw(self, axes: Mapping[str, int]) -> tuple[Tensor, ...]:
        values = self.definition.make_inputs(self._generator, axes, self.workload.dtype, self.regime)
        return tuple(
            _expanded(value, layout.strides) for value, layout in zip(values, self.workload.inputs, strict=True)
        )

    @property
    def size_bytes(self) -> int:
        """Of base draws and answers, as far as they were made, without what the bank holds."""
        owned = [not (self.definition.independent_axis and s.role is Role.WEIGHT) for s in self.definition.inputs]
        kept = sum(base.nbytes for base, own in zip(self.bases, owned, strict=True) if own)
        answers: Sequence[Expected] = self.__dict__.get("answers") or ()
        return kept + sum(answer.values.nbytes + answer.scale.nbytes for answer in answers)

    @functools.cached_property
    def largest(self) -> float:
        """The largest finite magnitude."""
        return max(float(base.abs().nan_to_num(0.0, 0.0, 0.0).max()) for base in self.bases)

    def case(self, numbers: Sequence[int]) -> list[Tensor]:
        """Inputs of whole base draws, those sets of them; activations and weights of the same number."""
        return [base[list(numbers)] for base in self.bases]

    @functools.cached_property
    def answers(self) -> list[Expected] | None:
        """Per output, what every base draw should give, dense; None where that is too much to keep."""
        outputs = max(math.prod([self.workload.axes[axis] for axis in s.dims]) for s in self.definition.outputs)
        weights = max((base[0].numel() for base in self.bases), default=0)
        if max(outputs, weights) > KEPT_ELEMENTS:
            return None
        expected = self.expected(self.case(range(self.count)))
        return [one.dense() for one in expected]

    def _reference(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Values and their error scales."""
        return (*self.definition.reference(*arguments), *self.definition.error_scale(*arguments))

    def expected(self, inputs: Sequence[Tensor]) -> list[Expected]:
        """What S sets of inputs should give."""
        exact = [tensor.to(torch.float64) for tensor in inputs]
        both = _batched(self._reference, exact, self._scalars)
        values, scales = both[: len(both) // 2], both[len(both) // 2 :]
        dtype = getattr(torch, self.workload.dtype)
        return [Expected(value, scale, dtype) for value, scale in zip(values, scales, strict=True)]

    @functools.cached_property
    def facts(self) -> tuple[ErrorFacts, ...]:
        """Errors of the production baseline, per output: in this regime or in traffic, whichever are larger.

        In a stress regime the baseline may happen to be exact (ties sum without rounding); that obliges nobody.
        """
        return self._measure_facts(() if self._traffic is None else self._traffic.facts, linked=False)

    @functools.cached_property
    def linked_facts(self) -> tuple[ErrorFacts, ...]:
        """Likewise on activations that a link has scaled."""
        return self._measure_facts(self.facts, linked=True)

    def _measure_facts(self, known: Sequence[ErrorFacts], *, linked: bool) -> tuple[ErrorFacts, ...]:
        """Of samples, and what is known already."""
        baseline = self.definition.baselines["eager"]
        generator = Generator().manual_seed(self.seed + 1 + linked)
        outputs = sum(math.prod([self.workload.axes[axis] for axis in s.dims]) for s in self.definition.outputs)
        samples = min(MAX_FACT_SAMPLES, max(2, -(-FACT_ELEMENTS // outputs)))
        found: list[list[ErrorFacts]] = [list(known)] if known else []
        with torch.inference_mode():
            for number in range(samples):
                inputs = [
                    _pick(base, generator)
                    if spec.role is Role.WEIGHT and self.definition.independent_axis
                    else _splice(base, generator)
                    for spec, base in zip(self.definition.inputs, self.bases, strict=True)
                ]
                if linked:
                    inputs = [
                        tensor if spec.role is Role.WEIGHT else _scaled(tensor, generator)
                        for spec, tensor in zip(self.definition.inputs, inputs, strict=True)
                    ]
                results = baseline(*(tensor[0] for tensor in inputs), *self._scalars)
                part = choose_part(self.definition, self.workload, PART_ELEMENTS, generator)
                some_inputs = part.of_inputs(inputs)
                expected = self.expected(some_inputs)
                outputs_S = part.of_outputs([result[None] for result in results])
                measured = [measure(r, e) for r, e in zip(outputs_S, expected, strict=True)]
                if number < PLAIN_SAMPLES:
                    measured = list(yardstick.widened(self.definition, some_inputs, expected, measured))
                found.append(measured)
        return tuple(merge(facts) for facts in zip(*found, strict=True))


@dataclass(frozen=True)
class Part:
    """Some places along one axis, in order; everything where `places` is None."""

    definition: Definition
    axis: str = ""
    places: Tensor | None = None
    """P, of every set, or SP, of each set its own."""

    def of_inputs(self, tensors: Sequence[Tensor], numbers: Tensor | None = None) -> list[Tensor]:
        """Dense copies: of those sets, or of all, of these places."""
        return [
            self.of(spec.dims, tensor, numbers) for spec, tensor in zip(self.definition.inputs, tensors, strict=True)
        ]

    def of_outputs(self, tensors: Sequence[Tensor], numbers: Tensor | None = None) -> list[Tensor]:
        """Likewise."""
        return [
            self.of(spec.dims, tensor, numbers) for spec, tensor in zip(self.definition.outputs, tensors, strict=True)
        ]

    def of(self, dims: Sequence[str], tensor: Tensor, numbers: Tensor | None) -> Tensor:
        """Of one tensor with these dimensions."""
        if self.places is None or self.axis not in dims:
            return tensor if numbers is None else tensor[numbers]
        sets = torch.arange(tensor.shape[0]) if numbers is None else numbers
        if dims[0] == self.axis:  # never copied whole
            return tensor[sets[:, None], self.places]
        dim = 1 + list(dims).index(self.axis)
        return tensor.movedim(dim, 1)[sets[:, None], self.places].movedim(1, dim)

    def whole_index(self, dims: Sequence[str], index: tuple[int, ...], call: int) -> tuple[int, ...]:
        """Where an element of a part lies in the whole tensor of that set."""
        if self.places is None:
            return index
        places = self.places if self.places.dim() == 1 else self.places[call]
        return tuple(int(places[i]) if dim == self.axis else i for dim, i in zip(dims, index, strict=True))

    def of_sets(self, some: slice) -> Part:
        """The part of some of the sets, where each has its own."""
        return self if self.places is None else replace(self, places=self.places[some])


def choose_part(definition: Definition, workload: Workload, elements: int, generator: Generator) -> Part:
    """A random part of about so many elements: of the weights along the axis of independent outputs, at least
    `MIN_PLACES`, or of the rows, at least one. Everything if it is no larger.
    """
    axis, count = part_size(definition, workload, elements)
    if not axis:
        return Part(definition)
    return Part(definition, axis, torch.randperm(workload.axes[axis], generator=generator)[:count].sort().values)


def part_size(definition: Definition, workload: Workload, elements: int) -> tuple[str, int]:
    """Along which axis such a part lies, and of how many places it is; no axis means everything."""
    axis = definition.independent_axis or definition.row_axis
    if not axis:
        return "", 0
    extent = workload.axes[axis]
    per_place = sum(math.prod(layout.shape) for layout in workload.inputs) / extent
    count = max(MIN_PLACES if definition.independent_axis else 1, int(elements / per_place))
    return (axis, count) if count < extent else ("", 0)


def _expanded(values: Tensor, strides: Sequence[int]) -> Tensor:
    """The values as a call with those strides sees them: along an expanded dimension the first stand for all."""
    for dim, stride in enumerate(strides):
        if stride == 0 and values.shape[dim] > 1:
            values = values.narrow(dim, 0, 1).expand(values.shape)
    return values


def _pick(base: Tensor, generator: Generator) -> Tensor:
    """One base draw, as a set: of large weights, which take long to copy."""
    number = int(torch.randint(0, base.shape[0], (1,), generator=generator))
    return base[number : number + 1]


def _splice(base: Tensor, generator: Generator) -> Tensor:
    """A set of one value: the head of one base draw and the tail of another."""
    flat = base.flatten(1)
    first, second = torch.randperm(base.shape[0], generator=generator)[:2].tolist()
    cut = int(torch.randint(0, flat.shape[1], (1,), generator=generator))
    return torch.cat((flat[first, :cut], flat[second, cut:])).reshape(1, *base.shape[1:])


def _scaled(values: Tensor, generator: Generator) -> Tensor:
    """As a link does it: each times a number from 0.5 to 1.5."""
    if not values.is_floating_point():
        return values
    return (values.to(torch.float32) * (0.5 + torch.rand(values.shape, generator=generator))).to(values.dtype)


def _batched(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], scalars: Sequence[float]
) -> list[Tensor]:
    """The function for all sets at once."""
    with torch.inference_mode():
        if inputs[0].shape[0] == 1:
            return [value[None] for value in function(*(tensor[0] for tensor in inputs), *scalars)]
        over_sets = (*(0 for _ in inputs), *(None for _ in scalars))
        return list(torch.func.vmap(function, in_dims=over_sets)(*inputs, *scalars))
