"""Whether a definition's correctness rule can fail: wrong answers are put to it, and right ones, in every regime.

A definition must prove itself before it is used: `examine` makes answers that are wrong in ways that are known to
happen (`sabotage.py`) and answers that honest kernels give, at sizes derived from the definition's own edges. A wrong
answer has to be rejected wherever it can be told from a right one, and each kind of it in at least one regime. What can
be told is decided without the rule: it differs from the truth by several roundings, and by several times what the
engine's own answer does.

Shape suffixes: S sets, then the tensor's own dimensions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from gristmill.workload import TensorLayout, Workload, dense
from harness import comparer, sabotage, yardstick
from harness.comparer import ErrorFacts, Expected
from harness.draws import Draws
from kernels.definition import Definition
from kernels.inputs import materialise, workload

TOLD_LARGEST = 10.0
"""An answer is told from a right one if an element is off by more than so many roundings and by as much more as the
engine's own answer is off, or ..."""
TOLD_MEAN = 2.0
"""... a row by so many on average."""
ENGINE_TIMES = 5.0
"""How many times the engine's own error."""
ELEMENTS = 1024
MANY_ELEMENTS = 1_000_000
LONG = 16
"""How many times the largest edge an axis is long, where honest sums are tried."""
LONG_ELEMENTS = 1 << 20
SEED = 11
HONEST_CALLS = 2


@dataclass(frozen=True)
class Probe:
    """One answer that was put to the rule."""

    operator: str
    dtype: str
    regime: str
    what: str
    output: str
    wrong: bool
    """Whether it should be rejected; if not, it should be accepted."""
    told: bool
    """Whether it can be told from a right answer."""
    accepted: bool

    @property
    def passed(self) -> bool:
        """Whether the rule did what it should, or could not be expected to."""
        return not (self.accepted and self.told) if self.wrong else self.accepted

    def __str__(self) -> str:
        verdict = "accepted" if self.accepted else "rejected"
        return f"{self.operator} {self.dtype}, {self.regime} values: {self.what} of {self.output} is {verdict}"


class Exam:
    """One definition at one size, with the yardstick of each regime."""

    def __init__(self, definition: Definition, made: Workload, seed: int = SEED) -> None:
        self.definition = definition
        self.workload = made
        self.dtype: torch.dtype = getattr(torch, made.dtype)
        self.scalars = tuple(scalar.default for scalar in definition.scalars)
        self._seed = seed
        self._draws: dict[str, Draws] = {}

    def draws(self, regime: str) -> Draws:
        """Base draws of one regime; their baseline's errors are measured once."""
        first = self.definition.regimes[0]
        if regime not in self._draws:
            traffic = self.draws(first) if regime != first else None
            self._draws[regime] = Draws(self.definition, self.workload, regime, self._seed, traffic)
        return self._draws[regime]

    def inputs(self, regime: str, number: int, layouts: Sequence[TensorLayout] = ()) -> tuple[Tensor, ...]:
        """Values of one call, laid out as the workload or `layouts` say."""
        generator = Generator().manual_seed(self._seed + 1 + number)
        laid_out = replace(self.workload, inputs=tuple(layouts or self.workload.inputs))
        return materialise(self.definition, laid_out, regime, generator)

    def answer(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The reference in float64, rounded once."""
        exact = [tensor.to(torch.float64) for tensor in inputs]
        return [value.to(self.dtype) for value in self.definition.reference(*exact, *self.scalars)]

    def question(self, regime: str, number: int = 0, layouts: Sequence[TensorLayout] = ()) -> Question:
        """One call's inputs, and what is right for them."""
        draws, inputs = self.draws(regime), self.inputs(regime, number, layouts)
        sets = [tensor[None] for tensor in inputs]
        expected = draws.expected(sets)
        facts = yardstick.widened(self.definition, sets, expected, draws.facts)
        return Question(self, regime, inputs, expected, facts)


@dataclass(frozen=True)
class Question:
    """One call to be answered, and how exactly."""

    exam: Exam
    regime: str
    inputs: tuple[Tensor, ...]
    expected: list[Expected]
    facts: tuple[ErrorFacts, ...]

    @functools.cached_property
    def engine(self) -> tuple[Tensor, ...]:
        """What the engine answers."""
        return self.exam.definition.baselines["eager"](*self.inputs, *self.exam.scalars)

    @functools.cached_property
    def right(self) -> list[Tensor]:
        """The correctly rounded answer."""
        return [one.values[0].to(one.dtype) for one in self.expected]

    def put(self, what: str, answers: Sequence[Tensor | None], *, wrong: bool) -> Iterator[Probe]:
        """The rule's opinion on each output of an answer; None stands for an output that is not affected."""
        definition = self.exam.definition
        for index, (spec, answer) in enumerate(zip(definition.outputs, answers, strict=True)):
            if answer is None:
                continue
            expected, facts = self.expected[index], self.facts[index]
            found = answer.to(expected.dtype).reshape(expected.values.shape)
            mismatch = comparer.compare(found, expected, facts, workload="", output=spec.name)
            told = not wrong or _can_be_told(found, self.engine[index][None], expected)
            dtype = self.exam.workload.dtype
            yield Probe(definition.name, dtype, self.regime, what, spec.name, wrong, told, mismatch is None)


def examine(definition: Definition, dtype: str) -> list[Probe]:
    """All probes of one definition and dtype. It is sharp if `failures` finds nothing among them."""
    exam = Exam(definition, enlarged(definition, dtype))
    probes = [*_layouts(exam), *_large(definition, dtype), *_long(definition, dtype)]
    for regime in definition.regimes:
        for number in range(HONEST_CALLS):
            probes += _honest(exam.question(regime, number))
        question = exam.question(regime)
        other = exam.answer(exam.inputs(regime, 99))
        for what, answers in sabotage.answers(question.inputs, exam.scalars, definition, question.right, other):
            probes += question.put(what, answers, wrong=True)
    return probes


def failures(probes: Sequence[Probe]) -> list[str]:
    """What the rule got wrong, and which wrong answers no regime can tell: one line each."""
    lines = [str(probe) for probe in probes if not probe.passed]
    kinds = {(probe.what, probe.output): probe for probe in probes if probe.wrong}
    told = {(probe.what, probe.output) for probe in probes if probe.wrong and probe.told and not probe.accepted}
    missed = [probe for kind, probe in kinds.items() if kind not in told and not _beneath(probe)]
    return lines + [f"{p.operator} {p.dtype}: {p.what} of {p.output} cannot be told in any regime" for p in missed]


def _beneath(probe: Probe) -> bool:
    """Whether a wrong answer may be smaller than what the dtype resolves."""
    return probe.dtype == "bfloat16" and (
        probe.what in sabotage.BENEATH_BFLOAT16 or probe.what.endswith(sabotage.EIGHT_BITS)
    )


def enlarged(definition: Definition, dtype: str, elements: int = ELEMENTS) -> Workload:
    """The definition's largest edge, its variable axes doubled until the smallest output has so many elements."""
    axes = _largest_edge(definition)
    free = [axis for axis in definition.axes if axis not in definition.constant_axes] or list(definition.axes)
    while min(_sizes(definition, axes)) < elements:
        before = _sizes(definition, axes)
        axes |= {axis: 2 * axes[axis] for axis in free}
        if _sizes(definition, axes) == before:
            free = list(definition.axes)
    return workload(definition, dtype, **axes)


def _largest_edge(definition: Definition) -> dict[str, int]:
    edges = [dict(edge) for edge in definition.edge_axes]
    return max(edges, key=lambda edge: math.prod(edge.values()))


def _sizes(definition: Definition, axes: Mapping[str, int]) -> list[int]:
    return [math.prod(axes[axis] for axis in spec.dims) for spec in definition.outputs]


def _honest(question: Question) -> Iterator[Probe]:
    """What must be accepted: the rounded reference, every baseline, and plain float32 kernels."""
    exam = question.exam
    yield from question.put("the rounded reference", question.right, wrong=False)
    for name, baseline in exam.definition.baselines.items():
        yield from question.put(f"baseline {name}", baseline(*question.inputs, *exam.scalars), wrong=False)
    plain = [tensor.to(torch.float32) for tensor in question.inputs]
    yield from question.put("a float32 kernel", exam.definition.reference(*plain, *exam.scalars), wrong=False)
    with yardstick.SerialSums():
        serial = exam.definition.reference(*plain, *exam.scalars)
    yield from question.put("a float32 kernel that sums one by one", serial, wrong=False)


def _large(definition: Definition, dtype: str) -> Iterator[Probe]:
    """One wrong element among a million."""
    exam = Exam(definition, enlarged(definition, dtype, MANY_ELEMENTS))
    question = exam.question(definition.regimes[0])
    for what, answers in sabotage.single_elements(question.right):
        yield from question.put(f"{what} in a million", answers, wrong=True)
    yield from question.put("the rounded reference in a million", question.right, wrong=False)


def _long(definition: Definition, dtype: str) -> Iterator[Probe]:
    """Honest sums over long axes, one axis at a time."""
    edge = _largest_edge(definition)
    for axis in definition.axes:
        made = workload(definition, dtype, **{**edge, axis: LONG * edge[axis]})
        if sum(math.prod(layout.shape) for layout in made.inputs) > LONG_ELEMENTS:
            continue
        exam = Exam(definition, made)
        for regime in definition.regimes:
            for probe in _honest(exam.question(regime, 7)):
                yield replace(probe, what=f"{probe.what}, {axis} long,")


def _layouts(exam: Exam) -> Iterator[Probe]:
    """Each input laid out in steps, transposed and expanded, and read as if it were dense."""
    definition = exam.definition
    regime = definition.regimes[0]
    for index, spec in enumerate(definition.inputs):
        for what, layout in unusual_layouts(exam.workload.inputs[index]):
            layouts = list(exam.workload.inputs)
            layouts[index] = layout
            question = exam.question(regime, layouts=layouts)
            yield from question.put(f"the rounded reference for {spec.name} {what}", question.right, wrong=False)
            misread = list(question.inputs)
            misread[index] = read_as_dense(misread[index])
            answers = exam.answer(misread)
            affected = [sabotage.changed(a, b) for a, b in zip(answers, question.right, strict=True)]
            yield from question.put(f"{spec.name} {what} read as dense", affected, wrong=True)


def unusual_layouts(layout: TensorLayout) -> Iterator[tuple[str, TensorLayout]]:
    """Layouts that a kernel may overlook, by name."""
    shape, strides = layout.shape, layout.strides
    yield "in steps of two", replace(layout, strides=tuple(2 * stride for stride in strides))
    if len(shape) > 1:
        wider = dense((*shape[:-1], shape[-1] + 3), layout.dtype)
        yield "with padded rows", replace(layout, strides=wider.strides)
        turned = dense(tuple(reversed(shape)), layout.dtype)
        yield "transposed", replace(layout, strides=tuple(reversed(turned.strides)))
        expanded = dense(shape[1:], layout.dtype)
        yield "expanded", replace(layout, strides=(0, *expanded.strides))


def read_as_dense(tensor: Tensor) -> Tensor:
    """What a kernel sees that ignores strides; where the memory ends too early, it starts again."""
    memory = tensor.as_strided((_span(tensor),), (1,))
    rounds = -(-tensor.numel() // memory.numel())
    return memory.repeat(rounds)[: tensor.numel()].reshape(tensor.shape).nan_to_num(0.5)


def _span(tensor: Tensor) -> int:
    return 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _can_be_told(found: Tensor, engine: Tensor, expected: Expected) -> bool:
    """By the roundings of each element, or by those of the error scale.

    Where the engine is off by many roundings of an element, because it rounds what then cancels, that says how small
    the smallest answer is, and nothing about the others. There the mean error of the engine's worst row stands for a
    rounding.
    """
    wrong, ours = comparer.deviate(found, expected), comparer.deviate(engine, expected)
    accumulator = torch.finfo(torch.float32).eps / torch.finfo(expected.dtype).eps
    own, scale = wrong.last_places + accumulator, torch.tensor(accumulator + 1 / TOLD_LARGEST)
    if bool((ours.errors / own).max() > TOLD_LARGEST):
        own = ours.errors.mean(-1).max().clamp(min=accumulator)
    return any(_is_off(wrong.errors / unit, ours.errors / unit) for unit in (own, scale))


def _is_off(wrong: Tensor, engine: Tensor) -> bool:
    if bool(wrong.max() > TOLD_LARGEST + ENGINE_TIMES * engine.max()):
        return True
    rows, engine_rows = wrong.mean(-1).max(), engine.mean(-1).max()
    return wrong.shape[-1] > 1 and bool(rows > TOLD_MEAN + ENGINE_TIMES * engine_rows)
