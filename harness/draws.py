"""Where inputs come from and what should come out: base draws of a workload, spliced into ever new values.

A base draw costs a random number per element; a splice of two draws at a random place costs a copy. No call sees
values that an earlier call has seen, and whoever samples a few of them to recognise an input is wrong about the rest.

Shape suffixes: S sets, then the tensor's own dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from gristmill.workload import Workload
from harness.arena import Arena, Layout
from harness.comparer import ErrorFacts, Expected, measure, merge
from kernels.definition import Definition
from kernels.inputs import materialise

BASE_DRAWS = 6
BASE_DRAWS_LARGE = 2
LARGE_ELEMENTS = 1 << 20
FACT_ELEMENTS = 4096
"""The baseline's errors are sampled over at least so many output elements, where few draws suffice for it."""
MAX_FACT_SAMPLES = 24


class Draws:
    """Inputs, references and the baseline's own errors of one workload in one regime, from one seed."""

    def __init__(
        self, definition: Definition, workload: Workload, regime: str, seed: int, traffic: Draws | None = None
    ) -> None:
        self.definition = definition
        self.workload = workload
        self.regime = regime
        self.seed = seed
        self._traffic = traffic
        self._scalars = tuple(scalar.default for scalar in definition.scalars)
        self._generator = Generator().manual_seed(seed)
        self._bases = self._draw_bases()

    def _draw_bases(self) -> list[Tensor]:
        """Per input, `BASE_DRAWS` values: base, then the tensor's dimensions, dense."""
        elements = max(_elements(layout.shape) for layout in self.workload.inputs)
        count = BASE_DRAWS_LARGE if elements >= LARGE_ELEMENTS else BASE_DRAWS
        draws = [materialise(self.definition, self.workload, self.regime, self._generator) for _ in range(count)]
        return [torch.stack([draw[index] for draw in draws]) for index in range(len(draws[0]))]

    @property
    def size_bytes(self) -> int:
        return sum(base.nbytes for base in self._bases)

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
        outputs = sum(_elements([self.workload.axes[axis] for axis in s.dims]) for s in self.definition.outputs)
        samples = min(MAX_FACT_SAMPLES, max(2, -(-FACT_ELEMENTS // outputs)))
        found: list[list[ErrorFacts]] = []
        with torch.inference_mode():
            for _ in range(samples):
                inputs = [_splice(base, 1, generator) for base in self._bases]
                results = baseline(*(tensor[0] for tensor in inputs), *self._scalars)
                expected = self.expected(inputs)
                found.append([measure(r[None], e) for r, e in zip(results, expected, strict=True)])
        if self._traffic is not None:
            found.append(list(self._traffic.facts))
        return tuple(merge(facts) for facts in zip(*found, strict=True))


def gather(arena: Arena, numbers: Tensor) -> list[Tensor]:
    """Dense copies of those sets' tensors."""
    return [tensor[numbers] for tensor in arena.tensors]


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


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product
