"""Which operators of a profile are worth fusing: what their neighbours are, and what traffic it would save.

The expected saving is what the traffic between the parts costs now: the share of their bytes that would not move, of
the time that they take. It counts neither calls that fall away nor caches, in which small intermediates stay, so it
ranks proposals and promises nothing: the judge measures.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gristmill.sequence import Edge
from gristmill.workload import ITEM_BYTES, Workload
from kernels import catalogue, fusion_plan, inputs
from kernels.definition import Definition
from kernels.errors import UnknownOperatorError, WorkloadError
from kernels.fusion_plan import Stage
from kernels.fusion_wiring import Wiring, activations
from kernels.profile import TrafficProfile
from kernels.roofline import Peaks

WHOLE = 0.1
"""How far a number of readers may be from a whole one: steps are traced from their beginning, but not to their end."""


@dataclass(frozen=True)
class Proposal:
    """One operator to be fused, over all shapes in which the profile has it."""

    operator: str
    """Its name, which says what it is made of."""
    dtype: str
    time_share: float
    """Of the parts' calls that it would replace, in the time of all sampled operators."""
    traffic_saved: float
    """Share of the parts' bytes that would not move."""
    saving_share: float
    """What that may save of all sampled time."""
    workloads: tuple[Workload, ...]
    """What it would be called with, dense; time is that of the parts. The most time first."""


class Use(NamedTuple):
    """An operator with the axes that the model fixes, sorted by name."""

    operator: str
    axes: tuple[tuple[str, int], ...]


class Plan(NamedTuple):
    """Stages, who stands in them, and how often they could be run as one per call of the last."""

    stages: tuple[Stage, ...]
    parts: tuple[Use, ...]
    dtype: str
    share: float


class Output(NamedTuple):
    """One output of an operator, and the number of its readers."""

    producer: Use
    position: int
    dtype: str
    uses: int


def propose(profile: TrafficProfile, peaks: Peaks, least_share: float = 0.0) -> tuple[Proposal, ...]:
    """Proposals that could save at least that share of all sampled time, the largest first.

    Only what is limited by memory in all of its parts counts, and only operators with definitions that compose.
    """
    found: dict[tuple[str, str], list[_Shape]] = defaultdict(list)
    total_ns = profile.time_ns
    for plan in _plans(_Sequences(profile.edges)) if total_ns else ():
        name = fusion_plan.render(plan.stages)
        try:
            definition = catalogue.operator(name)
        except UnknownOperatorError:
            continue
        found[name, plan.dtype] += _shapes(profile, definition, plan, peaks)
    proposals = [_proposal(name, dtype, shapes, total_ns) for (name, dtype), shapes in found.items() if shapes]
    worth = [one for one in proposals if one.saving_share > 0 and one.saving_share >= least_share]
    return tuple(sorted(worth, key=lambda p: (-p.saving_share, p.operator, p.dtype)))


class _Sequences:
    """Edges by what one asks of them."""

    def __init__(self, edges: Sequence[Edge]) -> None:
        known = (*catalogue.NAMES, *catalogue.PARTS)
        self.edges = [e for e in edges if e.consumer in known and (not e.producer or e.producer in known)]
        self._into: Counter[tuple[Use, int, str]] = Counter()
        self._readers: dict[Output, Counter[tuple[Use, int]]] = defaultdict(Counter)
        for edge in self.edges:
            self._into[_consumer(edge), edge.input, edge.dtype] += edge.calls
            if edge.producer:
                output = Output(_producer(edge), edge.output, edge.dtype, edge.uses)
                self._readers[output][_consumer(edge), edge.input] += edge.calls

    def share(self, edge: Edge) -> float:
        """Of the consumer's calls that can be fused with what feeds it along this edge: one for each output."""
        readers = self._readers[Output(_producer(edge), edge.output, edge.dtype, edge.uses)]
        outputs = readers.total() / edge.uses
        return min(float(edge.calls), outputs) / self._into[_consumer(edge), edge.input, edge.dtype]

    @cached_property
    def siblings(self) -> list[tuple[Output, tuple[Use, ...], float]]:
        """Outputs that several operators read first, these operators, and how many such outputs there are per call of
        the last one.
        """
        found = []
        for output, readers in self._readers.items():
            count = readers.total() / output.uses
            times = {reader: round(calls / count) for reader, calls in readers.items()}
            whole = all(abs(calls / count - times[reader]) <= WHOLE for reader, calls in readers.items())
            uses = [use for (use, position), number in sorted(times.items()) for _ in range(number)]
            if output.uses < 2 or not whole or len(uses) != output.uses or not all(map(_is_first, times)):
                continue
            last = (uses[-1], _first(uses[-1]))
            share = count / self._into[*last, output.dtype]
            found.append((output, tuple(uses), min(1.0, share)))
        return found

    def feeding(self) -> Iterator[tuple[tuple[Use, ...], Use, str, float]]:
        """Operators whose first outputs are the first activations of another and of nobody else, in order."""
        by_consumer: dict[tuple[Use, str], dict[int, Edge]] = defaultdict(dict)
        for edge in self.edges:
            if edge.producer and edge.output == 0 and edge.uses == 1:
                known = by_consumer[_consumer(edge), edge.dtype].get(edge.input)
                if known is None or edge.calls > known.calls:
                    by_consumer[_consumer(edge), edge.dtype][edge.input] = edge
        for (use, dtype), fed in by_consumer.items():
            positions = activations(catalogue.operator(use.operator))
            chain = [fed[position] for position in positions if position in fed]
            if len(chain) > 1 and [edge.input for edge in chain] == positions[: len(chain)]:
                yield tuple(map(_producer, chain)), use, dtype, min(map(self.share, chain))


def _plans(sequences: _Sequences) -> Iterator[Plan]:
    """One operator that feeds another; siblings, with and without what feeds them; siblings and what they feed."""
    for edge in sequences.edges:
        consumer = _consumer(edge)
        if edge.producer and edge.output == 0 and _is_first((consumer, edge.input)):
            stages = (Stage((edge.producer,), edge.uses > 1), Stage((edge.consumer,)))
            yield Plan(stages, (_producer(edge), consumer), edge.dtype, sequences.share(edge))
    groups = {uses for _, uses, _ in sequences.siblings}
    for output, uses, share in sequences.siblings:
        beside = Stage(tuple(use.operator for use in uses))
        yield Plan((beside,), uses, output.dtype, share)
        if output.position == 0:
            yield Plan((Stage((output.producer.operator,)), beside), (output.producer, *uses), output.dtype, share)
    for uses, consumer, dtype, share in sequences.feeding():
        if tuple(sorted(uses)) in groups:
            stages = (Stage(tuple(use.operator for use in uses)), Stage((consumer.operator,)))
            yield Plan(stages, (*uses, consumer), dtype, share)


class _Shape(NamedTuple):
    """One workload of a proposal."""

    workload: Workload
    saved_ns: float
    bytes_moved: int
    """By the parts, in all calls."""
    bytes_saved: int


def _shapes(profile: TrafficProfile, definition: Definition, plan: Plan, peaks: Peaks) -> Iterator[_Shape]:
    parts = [catalogue.operator(use.operator) for use in plan.parts]
    wiring = Wiring(definition.name, plan.stages, tuple(parts))
    for last in _workloads(profile, plan.parts[-1], plan.dtype):
        extent = last.axes[_varying(parts[-1])]
        calls = round(last.calls * plan.share)
        own = [{**dict(use.axes), _varying(part): extent} for use, part in zip(plan.parts, parts, strict=True)]
        axes: dict[str, int] = {}
        for number, extents in enumerate(own):
            axes |= {wiring.axis_names[number, name]: value for name, value in extents.items()}
        fits = all(
            axes[wiring.axis_names[n, name]] == value for n, one in enumerate(own) for name, value in one.items()
        )
        times = [_mean_ns(profile, use, plan.dtype, one) for use, one in zip(plan.parts, own, strict=True)]
        item = ITEM_BYTES[plan.dtype]
        costs = [part.cost(one, item) for part, one in zip(parts, own, strict=True)]
        slow = [c.bytes_moved / peaks.memory_bandwidth_gb_s >= c.flops / peaks.gflops[plan.dtype] for c in costs]
        if not (calls and fits and all(times) and all(slow)):
            continue
        moved = sum(cost.bytes_moved for cost in costs)
        saved = moved - definition.cost(axes, item).bytes_moved
        time_ns = round(calls * sum(times))
        if not time_ns:  # less than half a nanosecond in all
            continue
        try:
            made = inputs.workload(definition, plan.dtype, **axes)
        except WorkloadError:
            continue
        made = dataclasses.replace(made, calls=calls, time_ns=time_ns)
        yield _Shape(made, time_ns * saved / moved, calls * moved, calls * saved)


def _proposal(name: str, dtype: str, shapes: Sequence[_Shape], total_ns: int) -> Proposal:
    merged: dict[str, Workload] = {}
    for shape in shapes:
        one = shape.workload
        known = merged.get(one.digest, dataclasses.replace(one, calls=0, time_ns=0))
        merged[one.digest] = dataclasses.replace(
            one, calls=known.calls + one.calls, time_ns=known.time_ns + one.time_ns
        )
    return Proposal(
        operator=name,
        dtype=dtype,
        time_share=sum(shape.workload.time_ns for shape in shapes) / total_ns,
        traffic_saved=sum(shape.bytes_saved for shape in shapes) / sum(shape.bytes_moved for shape in shapes),
        saving_share=math.fsum(shape.saved_ns for shape in shapes) / total_ns,
        workloads=tuple(sorted(merged.values(), key=lambda w: (-w.time_ns, w.digest))),
    )


def _workloads(profile: TrafficProfile, use: Use, dtype: str) -> list[Workload]:
    """One per extent of the axis that varies; calls of several layouts are one."""
    varying = _varying(catalogue.operator(use.operator))
    merged: dict[int, Workload] = {}
    for one in profile.workloads:
        constant = tuple(sorted((name, extent) for name, extent in one.axes.items() if name != varying))
        if (one.operator, one.dtype, constant) == (use.operator, dtype, use.axes):
            known = merged.get(one.axes[varying])
            merged[one.axes[varying]] = (
                dataclasses.replace(known, calls=known.calls + one.calls, time_ns=known.time_ns + one.time_ns)
                if known
                else one
            )
    return list(merged.values())


def _mean_ns(profile: TrafficProfile, use: Use, dtype: str, axes: dict[str, int]) -> float:
    """Of one call; 0 if the profile has none."""
    found = [w for w in _workloads(profile, use, dtype) if w.axes == axes and w.calls]
    return found[0].time_ns / found[0].calls if found else 0.0


def _varying(definition: Definition) -> str:
    return next(name for name in definition.axes if name not in definition.constant_axes)


def _producer(edge: Edge) -> Use:
    return Use(edge.producer, tuple(sorted(edge.producer_axes.items())))


def _consumer(edge: Edge) -> Use:
    return Use(edge.consumer, tuple(sorted(edge.consumer_axes.items())))


def _first(use: Use) -> int:
    return activations(catalogue.operator(use.operator))[0]


def _is_first(reader: tuple[Use, int]) -> bool:
    """Whether it reads its first activation."""
    return reader[1] == _first(reader[0])
