"""Traces of torch.profiler, in Chrome's format: every operator call with its shapes (`record_shapes=True`), its time on
the CPU, and that of the device kernels it started.

A call inside another that is one of ours belongs to that one. Where a trace has device kernels, time is theirs; in a
trace without, it is the CPU's. A trace is read as a stream; kept of each call are 40 bytes, of each kernel 24.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gristmill.errors import TraceError
from kernels.imports import json_stream, operator_names, trace_file
from kernels.imports.imported import Collector
from kernels.imports.operator_names import RecordedCall
from kernels.imports.trace_file import Tell, silent
from kernels.tally import Pattern

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Numbers = NDArray[numpy.int64]

CALL = "cpu_op"
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
MAX_KINDS = 1 << 18
"""Call patterns and names in one trace."""
OTHERS = "others"
NO_CALL = "device work without an operator call (graph replays)"
PART = 1 << 16
"""Calls that are looked at as Python's numbers at a time."""
NUMBERS = 5
"""Kept of a call: thread, start, length, kind, correlation with kernels."""


class TorchTrace:
    """One trace, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._calls = array("q")
        self._kernels = array("q")
        """Correlation and length, one after the other."""
        self._threads: dict[tuple[object, object], int] = {}
        self._kinds: dict[str | Pattern, int] = {OTHERS: 0}
        self._recorded: dict[tuple[Any, ...], int] = {}
        self._base_ns = 0
        self._shapes_recorded = False
        self._number = -1

    def read(self, tell: Tell = silent) -> None:
        """
        Raises:
            TraceError: no such trace, with the event at fault; or one without shapes.
        """
        chunks = trace_file.chunks(Path(self._name), tell)
        for event in json_stream.elements(chunks, self._name, "traceEvents", self._beside):
            self._number += 1
            if not isinstance(event, dict):
                self._refuse("event", event, "an object")
            category = event.get("cat")
            if event.get("ph") == "X" and category == CALL:
                self._call(event)
            elif event.get("ph") == "X" and category in KERNELS:
                self._kernels.extend((self._correlation(event), self._ns(event, "dur")))
        if not self._calls:
            raise TraceError(
                f"trace {self._name}: holds no operator call (category {CALL}); export it with torch.profiler's "
                "export_chrome_trace"
            )
        if not self._shapes_recorded:
            raise TraceError(f"trace {self._name}: no shapes are recorded; profile with record_shapes=True")

    def _beside(self, key: str, value: Any) -> None:
        if key == "baseTimeNanoseconds":
            if type(value) is not int or not 0 <= value < 1 << 62:
                self._refuse(key, value, "nanoseconds since 1970")
            self._base_ns = value

    def _call(self, event: Mapping[str, Any]) -> None:
        name = event.get("name")
        if not isinstance(name, str) or not name:
            self._refuse("name", name, "the operator's")
        thread = (_scalar(event.get("pid")), _scalar(event.get("tid")))
        number = self._threads.setdefault(thread, len(self._threads))
        kind = self._kind(name, self._arguments(event))
        self._calls.extend((number, self._ns(event, "ts"), self._ns(event, "dur"), kind, self._correlation(event)))

    def _kind(self, name: str, arguments: Mapping[str, Any]) -> int:
        """The number of the call's pattern, or of its name if it is not one of ours."""
        if name not in operator_names.RULES:
            self._shapes_recorded = self._shapes_recorded or "Input Dims" in arguments
            return self._numbered(name)
        call = RecordedCall(
            self._shapes("Input Dims", arguments),
            self._shapes("Input Strides", arguments),
            self._texts("Input type", arguments),
            self._texts("Concrete Inputs", arguments),
        )
        key = (name, call)
        if key not in self._recorded:
            found = self._numbered(operator_names.recognised(name, call) or name)
            if len(self._recorded) >= MAX_KINDS:
                return found
            self._recorded[key] = found
        return self._recorded[key]

    def _numbered(self, kind: str | Pattern) -> int:
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            return 0
        return self._kinds.setdefault(kind, len(self._kinds))

    def _arguments(self, event: Mapping[str, Any]) -> dict[str, Any]:
        found: Any = event.get("args", {})
        if not isinstance(found, dict):
            self._refuse("args", found, "an object")
        return found

    def _shapes(self, field: str, arguments: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """One per argument; lists of tensors, which are lists of shapes, count as none."""
        found = arguments.get(field, [])
        if not isinstance(found, list):
            self._refuse(field, found, "a list of shapes")
        self._shapes_recorded = self._shapes_recorded or field in arguments
        return tuple(_shape(one) for one in found)

    def _texts(self, field: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        found = arguments.get(field, [])
        if not isinstance(found, list):
            self._refuse(field, found, "a list of texts")
        return tuple(one if isinstance(one, str) else "" for one in found)

    def _correlation(self, event: Mapping[str, Any]) -> int:
        """By which a kernel names the call that started it; 0 for none. Older profilers wrote it as text."""
        found: Any = self._arguments(event).get("External id", 0)
        if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) < 19:
            found = int(found)
        if type(found) is not int or not 0 <= found < 1 << 63:
            self._refuse("External id", found, "a number from 0 on")
        return found

    def _ns(self, event: Mapping[str, Any], field: str) -> int:
        """Chrome's microseconds."""
        found = event.get(field)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e15:
            self._refuse(field, found, "microseconds from 0 on")
        return math.floor(found * 1000)

    def _refuse(self, field: str, found: object, expected: str) -> NoReturn:
        raise TraceError(
            f"trace {self._name}: event {self._number}, {field}: found {str(found)[:60]!r}, expected {expected}"
        )

    def collect(self, collector: Collector, began_ns: int) -> None:
        """All calls, and their time. `began_ns`: when the trace began, since 1970, if it does not say so itself."""
        import numpy

        calls: Numbers = numpy.frombuffer(self._calls, dtype=numpy.int64).reshape(-1, NUMBERS)
        calls = calls[numpy.lexsort((-calls[:, 2], calls[:, 1], calls[:, 0]))]
        kernels: Numbers = numpy.frombuffer(self._kernels, dtype=numpy.int64).reshape(-1, 2)
        device_ns, orphaned_ns, orphans = _by_call(calls, kernels)
        owners, self_ns = self._owners(calls)
        totals: Numbers = numpy.zeros(len(calls), dtype=numpy.int64)
        numpy.add.at(totals, owners, device_ns if len(kernels) else self_ns)
        base_ns = self._base_ns or began_ns - int(calls[:, 1].min())
        tops = numpy.flatnonzero(owners == numpy.arange(len(calls)))
        tops = tops[numpy.argsort(calls[tops, 1], kind="stable")]
        kinds = list(self._kinds)
        for part in numpy.array_split(tops, len(tops) // PART + 1):
            rows = numpy.column_stack((base_ns + calls[part, 1], calls[part, 2], calls[part, 3], totals[part]))
            for start_ns, length_ns, number, time_ns in rows.tolist():
                collector.at(start_ns, start_ns + length_ns)
                kind = kinds[number]
                if isinstance(kind, Pattern):
                    collector.add(kind, 1, time_ns)
                else:
                    collector.add_uncovered(kind, 1, time_ns)
        if orphans:
            collector.add_uncovered(NO_CALL, orphans, orphaned_ns)
        collector.facts.update({"operator calls": len(calls), "device kernels": len(kernels)})

    def _owners(self, calls: Numbers) -> tuple[Numbers, Numbers]:
        """Which call each belongs to (the outermost of ours around it, or itself), and its time without those inside.

        Calls are sorted by thread, start, and longest first.
        """
        import numpy

        ours = [isinstance(kind, Pattern) for kind in self._kinds]
        owners: Numbers = numpy.arange(len(calls))
        self_ns: Numbers = calls[:, 2].copy()
        open_: list[tuple[int, int, int]] = []  # end, place, owner if it is one of ours, or -1
        thread = -1
        parts = (calls[at : at + PART, :4].tolist() for at in range(0, len(calls), PART))
        for place, (of_thread, start, length, kind) in enumerate(itertools.chain.from_iterable(parts)):
            if of_thread != thread:
                open_.clear()
                thread = of_thread
            while open_ and open_[-1][0] <= start:
                open_.pop()
            owner = -1
            if open_:
                _, around, owner = open_[-1]
                self_ns[around] -= min(length, open_[-1][0] - start)
            if owner >= 0:
                owners[place] = owner
            elif ours[kind]:
                owner = place
            open_.append((start + length, place, owner))
        return owners, numpy.maximum(self_ns, 0)


def _by_call(calls: Numbers, kernels: Numbers) -> tuple[Numbers, int, int]:
    """Device time per call; and the time and number of kernels that none of them started."""
    import numpy

    order = numpy.argsort(calls[:, 4], kind="stable")
    known = calls[order, 4]
    times: Numbers = numpy.zeros(len(calls), dtype=numpy.int64)
    if not len(kernels):
        return times, 0, 0
    places = numpy.searchsorted(known, kernels[:, 0])
    found = (places < len(known)) & (kernels[:, 0] > 0)
    found[found] = known[places[found]] == kernels[found, 0]
    numpy.add.at(times, order[places[found]], kernels[found, 1])
    return times, int(kernels[~found, 1].sum()), int((~found).sum())


def _shape(found: Any) -> tuple[int, ...]:
    if isinstance(found, list) and all(type(one) is int for one in found):
        return tuple(found)
    return ()


def _scalar(found: Any) -> object:
    return found if isinstance(found, str | int) else None
