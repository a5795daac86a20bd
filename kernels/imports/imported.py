"""What an import gives: a traffic profile of the operators that can be compiled, and how much of the time they are."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from dataclasses import dataclass

from gristmill import records
from gristmill.workload import TensorLayout
from kernels import catalogue, inputs, sketch
from kernels.errors import EmptyProfileError, WorkloadError
from kernels.imports.request_traces import TracedRequest
from kernels.profile import TrafficProfile
from kernels.sketch import ANSWERS, MAX_EXTENT, PROMPTS, Observation, Stream
from kernels.tally import Counts, Pattern, Source, Tally

BLOCK_NS = 10 * 10**9
"""What happens within such a block of time is added up first."""
MAX_NAMES = 4096
"""Of operators that are not covered; further ones are counted as `OTHERS`."""
OTHERS = "others"
SHOWN = 20
MOST_POINTS = 1 << 63
"""Of all axes of a call together."""


@dataclass(frozen=True)
class Uncovered:
    """An operator that takes time and has no definition."""

    operator: str
    calls: int
    time_share: float
    """Of all time in the trace."""


@dataclass(frozen=True)
class Imported:
    """One import."""

    kind: str
    profile: TrafficProfile
    covered_share: float
    """Of all time in the trace, that in the profile's workloads."""
    uncovered: tuple[Uncovered, ...]
    """The largest shares first, `SHOWN` of them."""
    facts: dict[str, int]
    """What else there is to tell, by its name: requests, steps, what was left out."""


class Collector:
    """Adds up what an import finds, block by block. Memory is bounded, as that of tallies is."""

    def __init__(self, kind: str, source: Source, versions: dict[str, str]) -> None:
        self._kind = kind
        self._source = source
        self._versions = frozenset(versions.items())
        self._tally: Tally | None = None
        self._block = 0
        self._start_ns = self._end_ns = 0
        self._patterns: dict[Pattern, Counts] = {}
        self._prompts: Counter[int] = Counter()
        self._answers: Counter[int] = Counter()
        self._cached_tokens = 0
        self._seen: list[Observation] = []
        self._covered_ns = 0
        self._uncovered: dict[str, list[int]] = {}
        self.facts: Counter[str] = Counter()

    def at(self, start_ns: int, end_ns: int) -> None:
        """What is added next happened then, in nanoseconds since 1970."""
        block = start_ns // BLOCK_NS
        if block != self._block:
            self._close()
            self._block = block
        self._extend(start_ns, end_ns)

    def add(self, pattern: Pattern, calls: int, time_ns: int) -> None:
        """Calls of an operator that has a definition, and all their time."""
        self._patterns.setdefault(pattern, Counts()).add(Counts(calls, calls, time_ns))
        self._seen.append((*_stream(pattern), self._block * BLOCK_NS, calls, time_ns))
        self._covered_ns += time_ns

    def add_uncovered(self, operator: str, calls: int, time_ns: int) -> None:
        """Calls of one that has none."""
        if operator not in self._uncovered and len(self._uncovered) >= MAX_NAMES:
            operator = OTHERS
        sums = self._uncovered.setdefault(operator, [0, 0])
        sums[0] += calls
        sums[1] += time_ns

    def add_request(self, request: TracedRequest, arrived_ns: int) -> None:
        """One request, whenever it arrived."""
        self._extend(arrived_ns, arrived_ns + 1)
        self._prompts[request.prompt_tokens] += 1
        self._answers[request.generated_tokens] += 1
        self._cached_tokens += request.cached_tokens
        self._seen.append((PROMPTS, request.prompt_tokens, arrived_ns, 1, 0))
        self._seen.append((ANSWERS, request.generated_tokens, arrived_ns, 1, 0))

    def _extend(self, start_ns: int, end_ns: int) -> None:
        self._start_ns = min(self._start_ns or start_ns, start_ns)
        self._end_ns = max(self._end_ns, end_ns)

    def tally(self) -> Tally | None:
        """The sum of what was added so far; None if that is nothing."""
        self._close()
        return self._tally

    def finish(self) -> Imported:
        """
        Raises:
            EmptyProfileError: no call of an operator that can be compiled was found.
        """
        tally = self.tally()
        if tally is None or not tally.patterns:
            named = ", ".join(one.operator for one in self._largest(0)[:5])
            raise EmptyProfileError(
                f"import of {self._kind}: no call of an operator that can be compiled (./mill operators lists them)"
                + (f"; what takes the time is {named}" if named else "")
            )
        total_ns = self._covered_ns + sum(time_ns for _, time_ns in self._uncovered.values())
        return Imported(
            self._kind,
            tally.profile(),
            self._covered_ns / total_ns if total_ns else 0.0,
            self._largest(total_ns)[:SHOWN],
            dict(self.facts),
        )

    def _largest(self, total_ns: int) -> tuple[Uncovered, ...]:
        ordered = sorted(self._uncovered.items(), key=lambda item: (-item[1][1], item[0]))
        return tuple(
            Uncovered(name, calls, time_ns / total_ns if total_ns else 0.0) for name, (calls, time_ns) in ordered
        )

    def _close(self) -> None:
        if not self._patterns and not self._prompts:
            return
        tally = Tally(
            source=self._source,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            versions=self._versions,
            patterns=self._patterns,
            prompt_tokens=self._prompts,
            generated_tokens=self._answers,
            cached_tokens=self._cached_tokens,
            sketch=sketch.sketched(self._seen),
        )
        if self._tally is None:
            self._tally = tally
        else:
            self._tally.add(tally)
        self._patterns, self._prompts, self._answers, self._cached_tokens = {}, Counter(), Counter(), 0
        self._seen = []


@functools.lru_cache(maxsize=1 << 16)
def dense_pattern(operator: str, dtype: str, axes: tuple[tuple[str, int], ...]) -> Pattern:
    """The pattern of dense calls with these extents.

    Raises:
        WorkloadError: they are none of that operator, or too large.
    """
    workload = inputs.workload(catalogue.operator(operator), dtype, **dict(axes))
    return pattern_of(operator, dtype, workload.axes, workload.inputs)


@functools.lru_cache(maxsize=1 << 16)
def _stream(pattern: Pattern) -> tuple[Stream, int]:
    return sketch.stream_of(pattern.operator, pattern.dtype, json.loads(pattern.axes))


def pattern_of(operator: str, dtype: str, axes: dict[str, int], layouts: tuple[TensorLayout, ...]) -> Pattern:
    """A call pattern as tallies know it.

    Raises:
        WorkloadError: no machine runs such a call, and no profile that holds it could be read again.
    """
    steps = (step for layout in layouts for step in layout.strides)
    if math.prod(axes.values()) >= MOST_POINTS or max(steps, default=0) >= MAX_EXTENT:
        raise WorkloadError(f"{operator}: axes {axes}: that is more than any machine holds")
    return Pattern(operator, dtype, *(records.canonical_json(part).decode() for part in (axes, layouts)))
