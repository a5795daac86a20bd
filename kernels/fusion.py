"""Fused operators: one definition made of several, so that they are searched and judged like any other.

The reference is the composition of the parts' references, in float64 from end to end. The engine's composition rounds
every intermediate to the dtype; a fused kernel need not. Both have to be accepted, and little else. So the error scale
is composed to first order. Let `h` be an intermediate with scale `s`, and `g` the part that it feeds. Rounding `h` to
the dtype moves it in proportion to `|h|`; what it was summed up from moves it in proportion to `s`, in the float32 of
accumulators, which is nothing in bfloat16. One scale serves both dtypes: `|h| + s / 16` grows with `h`, and stays in
place where `h` is what is left of larger terms. Its effect on the answer is at most `|dg/dh|` times that, the
`sensitivity` of `g`. The scale of the answer is the larger of that of `g` on exact inputs and of what intermediates
carry into it; and so on along the chain. This bounds how far roundings reach, not how many there are: the judge
measures that on the engine's composition, in units of the scale, as for any operator. Where an answer hardly depends
on an intermediate little is allowed, so the rule stays sharp.

What does not compose is refused: tensors of different rank (a projection does not feed the rotary embedding, which
wants heads apart), an axis that the model fixes with one that varies, a part without `sensitivity`.

Input regimes are those that all parts know and that have an answer in float32. The product of two huge activations,
squared by a norm, has none: the engine is off by all of it there, and no kernel could be told to be wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernels.definition import Cost, Definition, Role
from kernels.fusion_plan import Stage
from kernels.fusion_wiring import Place, Wiring, numbered

Computed = Callable[[Definition], Callable[..., tuple[Tensor, ...]]]
"""What a part computes: its reference, or one of its baselines."""
SUMMED = 2.0**-4
"""How much of an intermediate's own scale carries on besides its size."""
FIRST_DIGIT = 0.1
"""Of the error scale."""
KINDS = 4
"""Rows of a regime that differ in kind come in turn, at most so many."""


def compose(name: str, stages: Sequence[Stage], parts: Sequence[Definition]) -> Definition:
    """The definition of that name.

    Args:
        parts: the definitions of all stages' operators, in order.

    Raises:
        UnknownOperatorError: they do not compose; the message says why.
    """
    wiring = Wiring(name, tuple(stages), tuple(parts))
    (inputs, outputs), varying, chain = wiring.specs, wiring.varying, _Chain(wiring)
    made = Definition(
        name=name,
        summary="; ".join(part.summary for part in parts),
        axes={axis.name: _meaning(wiring, axis.members[0]) for axis in wiring.axes},
        inputs=inputs,
        outputs=outputs,
        scalars=numbered([scalar for part in parts for scalar in part.scalars]),
        row_axis=_row_axis(wiring),
        constant_axes=tuple(axis.name for axis in wiring.axes if axis is not varying),
        independent_axis=_independent_axis(wiring),
        axis_steps=_axis_steps(wiring),
        reference=chain.computing(lambda part: part.reference),
        baselines=_baselines(chain),
        error_scale=chain.error_scale,
        elementwise=all(part.elementwise for part in parts),
        make_inputs=chain.make_inputs,
        regimes=_regimes(wiring),
        cost=chain.cost,
        edge_axes=_edge_axes(wiring),
    )
    traffic, *others = made.regimes
    answered = [regime for regime in others if _has_answers(made, varying.name, regime)]
    return dataclasses.replace(made, regimes=(traffic, *answered))


@dataclass(frozen=True)
class _Chain:
    """The parts one after another, on arguments of the whole."""

    wiring: Wiring

    def computing(self, what: Computed) -> Callable[..., tuple[Tensor, ...]]:
        """The composition of what each part computes. What passes between them is in the dtype that they give."""

        def compute(*arguments: Any) -> tuple[Tensor, ...]:
            values: dict[Place, Tensor] = {}
            for number, part, own in self._calls(arguments, values):
                values |= _placed(number, what(part)(*own))
            return tuple(values[place] for place in self.wiring.outputs)

        return compute

    def error_scale(self, *arguments: Any) -> tuple[Tensor, ...]:
        """As the module says. Where an intermediate is not finite it carries nothing: the answer is not finite either,
        or does not depend on it.
        """
        values: dict[Place, Tensor] = {}
        scales: dict[Place, Tensor] = {}
        offs: dict[Place, Tensor] = {}
        for number, part, own in self._calls(arguments, values):
            carried = self._carried(number, own, offs)
            found, alone = part.reference(*own), part.error_scale(*own)
            for output, (value, scale) in enumerate(zip(found, alone, strict=True)):
                place = (number, output)
                widest = [_finite(tensors[output]) for tensors in carried]
                scales[place] = functools.reduce(torch.maximum, widest, scale)
                offs[place] = functools.reduce(torch.maximum, widest, value.abs() + SUMMED * scale)
            values |= _placed(number, found)
        return tuple(scales[place] for place in self.wiring.outputs)

    def _carried(self, number: int, own: Sequence[Any], offs: Mapping[Place, Tensor]) -> list[tuple[Tensor, ...]]:
        """Per input that is fed, how far what it is off by moves the part's outputs."""
        part = self.wiring.parts[number]
        fed = {place[1]: output for place, output in self.wiring.feeds.items() if place[0] == number}
        if part.sensitivity is None:
            return []
        return [part.sensitivity(position, offs[output], *own) for position, output in fed.items()]

    def make_inputs(self, generator: Generator, axes: Mapping[str, int], dtype: str, regime: str) -> tuple[Tensor, ...]:
        """Every part's own inputs; what feeds a part comes out of the others instead."""
        drawn: dict[Place, Tensor] = {}
        for number, part in enumerate(self.wiring.parts):
            drawn |= _placed(number, part.make_inputs(generator, self._own_axes(number, axes), dtype, regime))
        return tuple(drawn[place] for place in self.wiring.inputs)

    def cost(self, axes: Mapping[str, int], item_bytes: int) -> Cost:
        """The sum, without the traffic of intermediates and with shared inputs read once."""
        wiring = self.wiring
        costs = [part.cost(self._own_axes(number, axes), item_bytes) for number, part in enumerate(wiring.parts)]
        unread = sum(self._elements(place, axes, output=False) for place in (*wiring.feeds, *wiring.shared))
        hidden = set(wiring.feeds.values()) - set(wiring.outputs)
        unwritten = sum(self._elements(place, axes, output=True) for place in hidden)
        return Cost(
            flops=sum(cost.flops for cost in costs),
            bytes_read=sum(cost.bytes_read for cost in costs) - unread * item_bytes,
            bytes_written=sum(cost.bytes_written for cost in costs) - unwritten * item_bytes,
        )

    def _calls(
        self, arguments: Sequence[Any], values: Mapping[Place, Tensor]
    ) -> Iterator[tuple[int, Definition, list[Any]]]:
        """Part by part, its number and arguments; `values` must hold the outputs of those before it."""
        wiring = self.wiring
        given = dict(zip(wiring.inputs, arguments, strict=False))
        scalars = iter(arguments[len(wiring.inputs) :])
        for number, part in enumerate(wiring.parts):
            own = [self._tensor((number, position), given, values) for position in range(len(part.inputs))]
            yield number, part, [*own, *(next(scalars) for _ in part.scalars)]

    def _tensor(self, place: Place, given: Mapping[Place, Any], values: Mapping[Place, Tensor]) -> Any:
        output = self.wiring.feeds.get(place)
        return given[self.wiring.shared.get(place, place)] if output is None else values[output]

    def _own_axes(self, number: int, axes: Mapping[str, int]) -> dict[str, int]:
        names = self.wiring.axis_names
        return {axis: axes[names[number, axis]] for axis in self.wiring.parts[number].axes}

    def _elements(self, place: Place, axes: Mapping[str, int], *, output: bool) -> int:
        part, own = self.wiring.parts[place[0]], self._own_axes(place[0], axes)
        spec = (part.outputs if output else part.inputs)[place[1]]
        return math.prod(own[dim] for dim in spec.dims)


def _finite(scale: Tensor) -> Tensor:
    return torch.where(torch.isfinite(scale), scale, 0.0)


def _placed(number: int, tensors: Sequence[Tensor]) -> dict[Place, Tensor]:
    return {(number, position): tensor for position, tensor in enumerate(tensors)}


def _meaning(wiring: Wiring, member: tuple[int, str]) -> str:
    return wiring.parts[member[0]].axes[member[1]]


def _baselines(chain: _Chain) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    """`eager`, and what other baselines parts have, with the eager calls of those that lack them."""
    names = dict.fromkeys(name for part in chain.wiring.parts for name in part.baselines)

    def named(name: str) -> Computed:
        return lambda part: part.baselines.get(name, part.baselines["eager"])

    return {name: chain.computing(named(name)) for name in names}


def _row_axis(wiring: Wiring) -> str:
    """One that is every part's."""
    rows = {wiring.axis_names.get((number, part.row_axis), "") for number, part in enumerate(wiring.parts)}
    return rows.pop() if len(rows) == 1 else ""


def _independent_axis(wiring: Wiring) -> str:
    """One that all weights and outputs have and no other input, and along which every part is independent."""
    inputs, outputs = wiring.specs
    for axis in wiring.axes:
        own = dict(axis.members)
        parts_are = all(
            number in own and (part.elementwise or part.independent_axis == own[number])
            for number, part in enumerate(wiring.parts)
        )
        weights_have = all((axis.name in spec.dims) == (spec.role is Role.WEIGHT) for spec in inputs)
        if parts_are and weights_have and all(axis.name in spec.dims for spec in outputs):
            return axis.name
    return ""


def _axis_steps(wiring: Wiring) -> dict[str, int]:
    steps = {
        axis.name: math.lcm(*(wiring.parts[number].axis_steps.get(name, 1) for number, name in axis.members))
        for axis in wiring.axes
    }
    return {name: step for name, step in steps.items() if step > 1}


def _regimes(wiring: Wiring) -> tuple[str, ...]:
    """Those that all parts know, and that fed ones have an answer for whatever comes."""
    fed = {number for number, _ in wiring.feeds}
    known = [part.fed_regimes if number in fed else part.regimes for number, part in enumerate(wiring.parts)]
    return tuple(regime for regime in wiring.parts[0].regimes if all(regime in regimes for regimes in known))


def _has_answers(made: Definition, varying: str, regime: str) -> bool:
    """Whether float32 gives the first digit of every finite answer, with every kind of row of one input beside every
    kind of another. So small that no library wakes threads for it.
    """
    axes = {axis: 7 * made.axis_steps.get(axis, 1) for axis in made.axes} | {varying: KINDS}
    drawn = made.make_inputs(Generator().manual_seed(0), axes, "float32", regime)
    row = torch.arange(KINDS * KINDS)
    mixed = [
        tensor[(row // KINDS, row % KINDS)[number % 2]] if spec.dims[0] == varying else tensor
        for number, (tensor, spec) in enumerate(zip(drawn, made.inputs, strict=True))
    ]
    exact, scalars = [tensor.double() for tensor in mixed], [scalar.default for scalar in made.scalars]
    wanted, scales = made.reference(*exact, *scalars), made.error_scale(*exact, *scalars)
    return all(
        bool((((found - right).abs() <= FIRST_DIGIT * scale) | ~right.isfinite()).all())
        for found, right, scale in zip(made.reference(*mixed, *scalars), wanted, scales, strict=True)
    )


def _edge_axes(wiring: Wiring) -> tuple[dict[str, int], ...]:
    """The sizes of the first part that has the axis. A second axis of the same sizes takes them one edge later, the
    smallest apart, so that no kernel passes which takes one for the other.
    """
    steps = _axis_steps(wiring)
    count = min(len(part.edge_axes) for part in wiring.parts)
    edges: list[dict[str, int]] = []
    for place in range(count):
        edge = {}
        for axis in wiring.axes:
            number, own = axis.members[0]
            moved = 1 + (place - 1 + axis.repeats) % (count - 1) if place else 0
            step = steps.get(axis.name, 1)
            edge[axis.name] = -(-wiring.parts[number].edge_axes[moved][own] // step) * step
        edges.append(edge)
    return tuple(edges)
