"""From steps to operator calls: what a model calls in each step of a simulated engine, and what time that takes.

Shapes and counts follow from the model. Time is a model too: a step's length, as the engine's limits state it, is
shared out among its calls by the roofline of each. So shares are those of an engine whose operators are equally good.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gristmill.errors import TraceError
from kernels.imports.batching import Batching, Limits, Step
from kernels.imports.imported import BLOCK_NS, Collector, dense_pattern
from kernels.imports.request_traces import MAX_ARRIVAL_NS, TracedRequest
from kernels.models import vocabulary
from kernels.models.step import OperatorCall, StepBatch


class StepModel(Protocol):
    """What is asked of a model: `kernels.models.listing.ModelOperators`."""

    def calls(self, batch: StepBatch) -> tuple[OperatorCall, ...]:
        """The calls of one step."""
        ...


@dataclass(frozen=True)
class Device:
    """What the fleet's device can do at best; only the ratio of the two matters."""

    tflops: float
    gb_s: float

    def roofline_ns(self, call: OperatorCall) -> float:
        """The longer of computing and moving the bytes of one call."""
        return _roofline_ns(self, call.operator, call.dtype, tuple(call.axes.items()))


@functools.lru_cache(maxsize=1 << 16)
def _roofline_ns(device: Device, operator: str, dtype: str, axes: tuple[tuple[str, int], ...]) -> float:
    cost = vocabulary.cost(OperatorCall(operator, dict(axes), dtype, 1))
    return max(cost.flops / device.tflops / 1000, cost.bytes_moved / device.gb_s)


@dataclass
class _Alike:
    """Steps of one block that hold as many tokens, and differ in the lengths of what they attend to."""

    steps: int = 0
    length_ns: int = 0
    context_tokens: int = 0


class ModelledTraffic:
    """One trace, served by one model within an engine's limits."""

    def __init__(self, model: StepModel, device: Device, limits: Limits, collector: Collector) -> None:
        self._model = model
        self._device = device
        self._limits = limits
        self._collector = collector

    def serve(self, requests: Iterable[TracedRequest], began_ns: int) -> None:
        """Simulates the engine and collects what it calls. `began_ns`: when time 0 of the requests was, since 1970.

        Raises:
            TraceError: it would be busy until after the year 2262, which no time in 64 bits tells.
        """
        batching = Batching(self._limits)
        facts = self._collector.facts
        block = -1
        alike: dict[tuple[int, tuple[tuple[int, int], ...]], _Alike] = {}
        for step in batching.steps(self._noted(requests, began_ns)):
            start_ns = began_ns + step.start_ns
            if start_ns + step.length_ns >= MAX_ARRIVAL_NS:
                raise TraceError(
                    "import of requests: an engine within these limits would serve them until after the year 2262; "
                    "give the trace's start and limits of the engine that serves it (--start, --step-ms, --token-us)"
                )
            if start_ns // BLOCK_NS != block:
                self._collect(alike)
                alike.clear()
                block = start_ns // BLOCK_NS
            self._collector.at(start_ns, start_ns + step.length_ns)
            self._note(step, alike)
            facts["steps"] += 1
            facts["tokens"] += step.tokens
            facts["most decodes in a step"] = max(facts["most decodes in a step"], step.decodes)
        self._collect(alike)
        facts["longest queue"] = max(facts["longest queue"], batching.longest_queue)

    def _noted(self, requests: Iterable[TracedRequest], began_ns: int) -> Iterator[TracedRequest]:
        for request in requests:
            self._collector.facts["requests"] += 1
            self._collector.add_request(request, began_ns + request.arrival_ns)
            yield request

    def _note(self, step: Step, alike: dict[tuple[int, tuple[tuple[int, int], ...]], _Alike]) -> None:
        found = alike.setdefault((step.decodes, step.chunks), _Alike())
        found.steps += 1
        found.length_ns += step.length_ns
        found.context_tokens += step.context_tokens

    def _collect(self, alike: dict[tuple[int, tuple[tuple[int, int], ...]], _Alike]) -> None:
        for (decodes, chunks), found in alike.items():
            mean = max(1, round(found.context_tokens / (decodes * found.steps))) if decodes else 0
            self._share_out(self._model.calls(StepBatch((mean,) * decodes, chunks)), found)

    def _share_out(self, calls: tuple[OperatorCall, ...], alike: _Alike) -> None:
        rooflines = [call.count * self._device.roofline_ns(call) for call in calls]
        whole = sum(rooflines)
        for call, roofline in zip(calls, rooflines, strict=True):
            time_ns = round(alike.length_ns * roofline / whole) if whole else 0
            count = call.count * alike.steps
            if vocabulary.is_defined(call):
                self._collector.add(dense_pattern(call.operator, call.dtype, tuple(call.axes.items())), count, time_ns)
            else:
                self._collector.add_uncovered(f"{call.operator} {call.dtype}", count, time_ns)
