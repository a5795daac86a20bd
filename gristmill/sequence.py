"""Sequences: which operator's output is which operator's input, seen in a small share of an engine's steps.

A tensor is known again by its address and size. For that the outputs of a traced step are kept alive until they are
among the oldest, so that no other tensor takes their address. What an operator that is not sampled reads does not
show: `uses` counts readers that are.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.site import Site
    from gristmill.value_capture import ValueCapture

MAX_CALLS = 4096
"""Calls of one step that are traced; the rest is left out."""
KEPT_OUTPUTS = 64
KEPT_BYTES = 64 << 20
MAX_USES = 8
"""More readers of one output count as so many, so that there are only so many edges."""


@dataclass(frozen=True)
class Edge:
    """How often one operator's output was another's input, in the traced steps of a window.

    Every activation that a traced call reads is on exactly one edge, so shares of calls can be told.
    """

    producer: str
    """Operator; empty where no sampled operator made the tensor in that step."""
    producer_axes: dict[str, int]
    """Those that the model fixes; empty for an empty producer."""
    output: int
    """Its position among the producer's outputs."""
    consumer: str
    consumer_axes: dict[str, int]
    input: int
    """Its position among the consumer's inputs."""
    dtype: str
    uses: int
    """How many inputs of sampled calls read that output, this one included; 0 for an empty producer."""
    calls: int


@dataclass(frozen=True)
class StepTimes:
    """What part of an engine's steps its sampled operators are, seen in those that were traced on the CPU."""

    steps: int = 0
    calls: int = 0
    step_ns: int = 0
    """From the start of a step's first call to the end of its last."""
    operator_ns: int = 0
    """In the calls."""

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            self.steps + other.steps,
            self.calls + other.calls,
            self.step_ns + other.step_ns,
            self.operator_ns + other.operator_ns,
        )


NO_STEPS = StepTimes()


class Link(NamedTuple):
    """An edge between sites, as it is counted."""

    producer: Site | None
    output: int
    consumer: Site
    input: int
    uses: int


class _Made:
    """One output that is kept, and who has read it."""

    __slots__ = ("output", "readers", "site", "tensor")

    def __init__(self, site: Site, output: int, tensor: Tensor) -> None:
        self.site = site
        self.output = output
        self.tensor = tensor
        self.readers: list[tuple[Site, int]] = []


class Tracer:
    """The sequence of one thread's step. `note` is for the engine's hot path; `close` gives the counts."""

    def __init__(self, values: ValueCapture | None = None) -> None:
        self.thread = threading.get_ident()
        self._values = values
        self._began_ns = self._ended_ns = self._operator_ns = 0
        self.cost_ns = 0
        """What noting the step's calls took."""
        self._made: dict[tuple[int, int], _Made] = {}
        self._kept_bytes = 0
        self._calls = 0
        self._links: Counter[Link] = Counter()

    @property
    def empty(self) -> bool:
        """No call was noted yet."""
        return not self._calls

    def note(
        self,
        site: Site,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        began_ns: int = 0,
        ended_ns: int = 0,
    ) -> None:
        """One call: its inputs and outputs in the contract's order, and when it was made."""
        if self._calls == MAX_CALLS or threading.get_ident() != self.thread:
            return
        self._calls += 1
        if inputs[0].is_cpu:  # elsewhere the host's clock times the telling, not the doing
            self._began_ns = self._began_ns or began_ns
            self._ended_ns = ended_ns
            self._operator_ns += ended_ns - began_ns
        noting_ns = perf_counter_ns()
        if self._values is not None:
            self._values.note(site, inputs)
        for position, tensor in enumerate(inputs):
            if not site.contract.inputs[position].weight:
                made = self._made.get((tensor.data_ptr(), tensor.numel()))
                if made is None:
                    self._links[Link(None, 0, site, position, 0)] += 1
                else:
                    made.readers.append((site, position))
        for output, tensor in enumerate(outputs):
            self._keep(_Made(site, output, tensor))
        self.cost_ns += perf_counter_ns() - noting_ns

    def close(self) -> Counter[Link]:
        """All links of the step."""
        for key in list(self._made):
            self._release(key)
        return self._links

    def times(self) -> StepTimes:
        """Of the step; nothing if not all of it was seen."""
        if not self._began_ns or self._calls == MAX_CALLS:
            return NO_STEPS
        return StepTimes(1, self._calls, self._ended_ns - self._began_ns, self._operator_ns)

    def _keep(self, made: _Made) -> None:
        key = (made.tensor.data_ptr(), made.tensor.numel())
        if key in self._made:
            self._release(key)
        self._made[key] = made
        self._kept_bytes += made.tensor.nbytes
        while len(self._made) > KEPT_OUTPUTS or self._kept_bytes > KEPT_BYTES:
            self._release(next(iter(self._made)))

    def _release(self, key: tuple[int, int]) -> None:
        made = self._made.pop(key)
        self._kept_bytes -= made.tensor.nbytes
        uses = min(len(made.readers), MAX_USES)
        for site, position in made.readers:
            self._links[Link(made.site, made.output, site, position, uses)] += 1


def edges(links: Mapping[Link, int]) -> tuple[Edge, ...]:
    """The links as records."""
    return tuple(
        Edge(
            producer=link.producer.operator if link.producer else "",
            producer_axes=dict(link.producer.constant_axes) if link.producer else {},
            output=link.output,
            consumer=link.consumer.operator,
            consumer_axes=dict(link.consumer.constant_axes),
            input=link.input,
            dtype=link.consumer.dtype,
            uses=link.uses,
            calls=calls,
        )
        for link, calls in links.items()
    )
