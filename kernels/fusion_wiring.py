"""How the parts of a fused operator hang together: which tensor and which axis of which part is which of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from kernels.definition import Definition, Role, ScalarSpec, TensorSpec
from kernels.errors import UnknownOperatorError
from kernels.fusion_plan import Stage

Place = tuple[int, int]
"""Number of a part, and the position of a tensor among its inputs or outputs."""
PartAxis = tuple[int, str]
"""Number of a part, and its own name for an axis."""
Named = TypeVar("Named", TensorSpec, ScalarSpec)


@dataclass(frozen=True)
class Axis:
    """One axis of the whole."""

    name: str
    """That of the first part which has it, with a number from the second axis of that name on."""
    members: tuple[PartAxis, ...]
    """What the parts call it, in their order."""
    repeats: int
    """How many axes before it have that name."""


@dataclass(frozen=True)
class Wiring:
    """All properties raise `UnknownOperatorError` where the parts do not fit."""

    name: str
    stages: tuple[Stage, ...]
    parts: tuple[Definition, ...]

    @cached_property
    def feeds(self) -> dict[Place, Place]:
        """Inputs that are another part's output, and that output."""
        found: dict[Place, Place] = {}
        before: list[Place] = []
        for numbers in self._numbers:
            if len(numbers) > 1:
                found |= {place: output for place in self._firsts(numbers) for output in before[:1]}
            else:
                places = [(numbers[0], position) for position in activations(self.parts[numbers[0]])]
                found |= dict(zip(places, before, strict=False))
            before = self._outputs_of(numbers)
        for place, output in found.items():
            self._check_feed(place, output)
        return found

    @cached_property
    def shared(self) -> dict[Place, Place]:
        """Inputs that are the same tensor as one of an earlier part, side by side with theirs."""
        stages = [self._firsts(numbers) for numbers in self._numbers]
        found = {place: stage[0] for stage in stages for place in stage[1:] if place not in self.feeds}
        for place, other in found.items():
            self._check_rank(place, self.parts[other[0]], self.parts[other[0]].inputs[other[1]])
        return found

    @cached_property
    def inputs(self) -> tuple[Place, ...]:
        """Inputs of the whole, in the order of the parts."""
        places = [(number, position) for number, part in enumerate(self.parts) for position in range(len(part.inputs))]
        return tuple(place for place in places if place not in self.feeds and place not in self.shared)

    @cached_property
    def outputs(self) -> tuple[Place, ...]:
        """Outputs of the whole: those of the last stage, then what the others give that feeds nobody or is kept."""
        fed = set(self.feeds.values())
        earlier: list[Place] = []
        for stage, numbers in zip(self.stages[:-1], self._numbers[:-1], strict=True):
            earlier += [place for place in self._outputs_of(numbers) if stage.kept or place not in fed]
        return (*self._outputs_of(self._numbers[-1]), *earlier)

    @cached_property
    def specs(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Inputs and outputs of the whole. Shape suffixes are those of the parts."""
        inputs = [self._spec(number, self.parts[number].inputs[position]) for number, position in self.inputs]
        outputs = [self._spec(number, self.parts[number].outputs[position]) for number, position in self.outputs]
        named = numbered([*inputs, *outputs])
        return named[: len(inputs)], named[len(inputs) :]

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the whole, in the order of the parts; those of tensors that are one tensor are one axis."""
        groups: list[list[PartAxis]] = [
            [(number, axis)] for number, part in enumerate(self.parts) for axis in part.axes
        ]
        for place, output in self.feeds.items():
            groups = self._joined(groups, place, output[0], self.parts[output[0]].outputs[output[1]])
        for place, other in self.shared.items():
            groups = self._joined(groups, place, other[0], self.parts[other[0]].inputs[other[1]])
        names = [group[0][1] for group in groups]
        repeats = [names[:i].count(name) for i, name in enumerate(names)]
        return tuple(
            Axis(f"{name}_{count + 1}" if count else name, tuple(group), count)
            for name, count, group in zip(names, repeats, groups, strict=True)
        )

    @cached_property
    def axis_names(self) -> dict[PartAxis, str]:
        """What the whole calls an axis of a part."""
        return {member: axis.name for axis in self.axes for member in axis.members}

    @cached_property
    def varying(self) -> Axis:
        """The one axis that varies from call to call."""
        varying = [axis for axis in self.axes if not all(map(self._is_constant, axis.members))]
        if len(varying) != 1 or any(map(self._is_constant, varying[0].members)):
            raise self.refused("its calls do not vary along one axis that all of its parts share")
        return varying[0]

    def refused(self, why: str) -> UnknownOperatorError:
        return UnknownOperatorError(f"operator {self.name!r} cannot be made of its parts: {why}; fuse others")

    @cached_property
    def _numbers(self) -> list[range]:
        """Numbers of the parts in each stage."""
        ends = [sum(len(stage.operators) for stage in self.stages[: i + 1]) for i in range(len(self.stages))]
        return [range(end - len(stage.operators), end) for end, stage in zip(ends, self.stages, strict=True)]

    def _firsts(self, numbers: Sequence[int]) -> list[Place]:
        return [(number, activations(self.parts[number])[0]) for number in numbers]

    def _outputs_of(self, numbers: Sequence[int]) -> list[Place]:
        return [(number, output) for number in numbers for output in range(len(self.parts[number].outputs))]

    def _check_feed(self, place: Place, output: Place) -> None:
        part, source = self.parts[place[0]], self.parts[output[0]]
        self._check_rank(place, source, source.outputs[output[1]])
        if part.sensitivity is None:
            raise self.refused(f"{part.name} does not say how errors of its inputs carry on")

    def _check_rank(self, place: Place, source: Definition, given: TensorSpec) -> None:
        part = self.parts[place[0]]
        wanted = part.inputs[place[1]]
        if len(given.dims) != len(wanted.dims):
            raise self.refused(
                f"{given.name} of {source.name} has {len(given.dims)} dimensions, {wanted.name} of {part.name} has "
                f"{len(wanted.dims)}"
            )

    def _joined(
        self, groups: Sequence[list[PartAxis]], place: Place, other: int, spec: TensorSpec
    ) -> list[list[PartAxis]]:
        """The groups, with the axes of that input and of that tensor of another part made one."""
        merged = list(groups)
        for mine, theirs in zip(self.parts[place[0]].inputs[place[1]].dims, spec.dims, strict=True):
            first, second = sorted(
                merged.index(next(group for group in merged if member in group))
                for member in ((place[0], mine), (other, theirs))
            )
            if first != second:
                merged[first] = sorted([*merged[first], *merged.pop(second)])
        return merged

    def _is_constant(self, member: PartAxis) -> bool:
        return member[1] in self.parts[member[0]].constant_axes

    def _spec(self, number: int, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dims=tuple(self.axis_names[number, dim] for dim in spec.dims))


def activations(part: Definition) -> list[int]:
    """Positions of the inputs that change with each call."""
    return [position for position, spec in enumerate(part.inputs) if spec.role is Role.ACTIVATION]


def numbered(specs: Sequence[Named]) -> tuple[Named, ...]:
    """The same with names of their own: `weight_NK` and `weight2_NK`."""
    names = [spec.name for spec in specs]
    unique = []
    for place, spec in enumerate(specs):
        count = names[:place].count(spec.name)
        stem, mark, suffix = spec.name.rpartition("_")
        number = str(count + 1) if count else ""
        unique.append(replace(spec, name=f"{stem}{number}{mark}{suffix}" if mark else f"{suffix}{number}"))
    return tuple(unique)
