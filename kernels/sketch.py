"""The sketch of a window: how much of what was called when, small enough to keep, and to add up over hosts.

Of each stream (one operator, dtype and model shape; or requests) a sketch holds calls and time by number of tokens,
exact up to 256 and in eighths of an octave above, and calls by quarter of an octave and cell of time, which tells how
much such a window varies by itself. Cells are 10 s wide, twice as wide whenever there would be too many entries; they
lie on one grid whoever sketches, and the width follows from the sum alone. So adding is associative and commutative.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.workload import VARIABLE_AXES, Workload

CELL_NS = 10 * 10**9
"""Of the finest grid, on which cell 0 begins with 1970."""
MAX_ENTRIES = 20_000
"""Numbers of calls by stream, cell and bin; about 250 kB of JSON."""
MAX_CELLS = 16_384
"""From the first to the last, called in or not; at the finest 45 hours. One host whose clock is wrong must not cost the
others' windows more memory than that.
"""
MAX_LEVEL = 32
MAX_EXTENT = 1 << 63
"""Of tokens, times and shapes: what hosts write are 64-bit integers."""
MAX_SUM = 1 << 96
"""Of calls and of their time, over all hosts."""
EXACT_TOKENS = 256
SIGNIFICANT_BITS = 4
"""Of numbers of tokens above `EXACT_TOKENS`."""
BINS_PER_OCTAVE = 4
REQUESTS = "requests"
PROMPT, GENERATED = "prompt tokens", "generated tokens"


class Stream(NamedTuple):
    """What is counted together."""

    subject: str
    """Operator, or `REQUESTS`."""
    dtype: str
    """Empty for requests."""
    axis: str
    """What varies from call to call."""
    shape: str
    """Extents that the model fixes, as canonical JSON; `{}` for requests."""

    @property
    def extents(self) -> dict[str, int]:
        return _extents(self.shape)


PROMPTS = Stream(REQUESTS, "", PROMPT, "{}")
ANSWERS = Stream(REQUESTS, "", GENERATED, "{}")
Entry = tuple[Stream, int, int]
"""Stream, cell, bin."""
Amounts = tuple[int, int]
"""Calls and nanoseconds."""
Observation = tuple[Stream, int, int, int, int]
"""Stream, tokens, when in nanoseconds since 1970, calls, and the nanoseconds that all of them took."""


@dataclass(frozen=True)
class StreamRecord:
    """One stream as it is kept. Lists of one kind are as long as each other."""

    subject: str
    dtype: str
    axis: str
    shape: dict[str, int]
    tokens: tuple[int, ...]
    """The least of each bucket; with `calls` and `time_ns`."""
    calls: tuple[int, ...]
    time_ns: tuple[int, ...]
    cells: tuple[int, ...]
    """After the first of the sketch; with `bins` and `counts`."""
    bins: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class SketchRecord:
    """A sketch as it is kept."""

    level: int = 0
    first_cell: int = 0
    streams: tuple[StreamRecord, ...] = ()


NO_SKETCH = SketchRecord()


@dataclass
class Sketch:
    """The sum of any number of observations."""

    level: int = 0
    """A cell lasts `CELL_NS << level`."""
    counts: dict[Entry, int] = field(default_factory=dict)
    """Calls; `MAX_ENTRIES` at most."""
    totals: dict[tuple[Stream, int], Amounts] = field(default_factory=dict)
    """By stream and bucket of tokens."""
    cells: range = range(0)
    """From the first to the last in which anything was called; those between were quiet."""

    def add(self, other: Sketch) -> None:
        """Counts what another sketch has observed as well; that one stays as it is."""
        self._coarsen(max(self.level, other.level))
        up = self.level - other.level
        theirs = _coarser_cells(other.cells, up)
        if theirs:
            cells = self.cells or theirs
            self.cells = range(min(cells.start, theirs.start), max(cells.stop, theirs.stop))
        for entry, calls in (_coarser(other.counts, up) if up else other.counts).items():
            self.counts[entry] = self.counts.get(entry, 0) + calls
        for bucket, (calls, time_ns) in other.totals.items():
            before_calls, before_ns = self.totals.get(bucket, (0, 0))
            self.totals[bucket] = (before_calls + calls, before_ns + time_ns)
        self._bound()

    def _bound(self) -> None:
        """Makes it as fine as there is room for. What is too large on one grid was too large on every finer one, and so
        are sums with more in them: the level depends on the observations alone.
        """
        while self.level < MAX_LEVEL and (len(self.counts) > MAX_ENTRIES or len(self.cells) > MAX_CELLS):
            self._coarsen(self.level + 1)

    def _coarsen(self, level: int) -> None:
        if up := level - self.level:
            self.level, self.counts, self.cells = level, _coarser(self.counts, up), _coarser_cells(self.cells, up)

    @property
    def cell_ns(self) -> int:
        return CELL_NS << self.level

    def record(self) -> SketchRecord:
        """The one record of these observations."""
        first = self.cells.start
        totals = {stream: list(group) for stream, group in groupby(sorted(self.totals), lambda key: key[0])}
        entries = {stream: list(group) for stream, group in groupby(sorted(self.counts), lambda key: key[0])}
        return SketchRecord(
            self.level,
            first,
            tuple(
                StreamRecord(
                    stream.subject,
                    stream.dtype,
                    stream.axis,
                    stream.extents,
                    tuple(bucket for _, bucket in totals.get(stream, ())),
                    tuple(self.totals[key][0] for key in totals.get(stream, ())),
                    tuple(self.totals[key][1] for key in totals.get(stream, ())),
                    tuple(cell - first for _, cell, _ in entries.get(stream, ())),
                    tuple(bin_ for _, _, bin_ in entries.get(stream, ())),
                    tuple(self.counts[key] for key in entries.get(stream, ())),
                )
                for stream in sorted({*totals, *entries})
            ),
        )


def from_record(record: SketchRecord) -> Sketch:
    """
    Raises:
        MalformedRecordError: lists that belong together differ in length, or a number cannot be.
    """
    if not 0 <= record.level <= MAX_LEVEL:
        raise MalformedRecordError(f"sketch: level {record.level}, expected 0 to {MAX_LEVEL}")
    counts: dict[Entry, int] = {}
    totals: dict[tuple[Stream, int], Amounts] = {}
    for kept in record.streams:
        stream = Stream(kept.subject, kept.dtype, kept.axis, records.sorted_json(kept.shape))
        lengths = {len(kept.tokens), len(kept.calls), len(kept.time_ns)}, {len(kept.cells), len(kept.bins)}
        if len(lengths[0]) > 1 or lengths[1] != {len(kept.counts)}:
            raise MalformedRecordError(f"sketch of {kept.subject} {kept.dtype}: its lists differ in length")
        extents = tuple(kept.shape.values())
        last_ns = (record.first_cell + max(kept.cells, default=0)) * (CELL_NS << record.level)
        places = (*kept.tokens, *kept.cells, *kept.bins, *extents, record.first_cell, last_ns)
        sums = (*kept.calls, *kept.time_ns, *kept.counts)
        if min(*places, *sums) < 0 or max(places) >= MAX_EXTENT or max(sums, default=0) >= MAX_SUM or 0 in extents:
            raise MalformedRecordError(
                f"sketch of {kept.subject} {kept.dtype}: a number is negative or too large, or an extent is 0"
            )
        for tokens, calls, time_ns in zip(kept.tokens, kept.calls, kept.time_ns, strict=True):
            totals[stream, tokens] = (calls, time_ns)
        for cell, bin_, calls in zip(kept.cells, kept.bins, kept.counts, strict=True):
            counts[stream, record.first_cell + cell, bin_] = calls
    return _sketch(record.level, counts, totals)


def stream_of(operator: str, dtype: str, axes: Mapping[str, int]) -> tuple[Stream, int]:
    """The stream of a call with these extents, and how many tokens (or rows) it has; 1 for operators without any."""
    axis = next((name for name in VARIABLE_AXES if name in axes), "")
    shape = {name: extent for name, extent in axes.items() if name not in VARIABLE_AXES}
    return Stream(operator, dtype, axis, records.sorted_json(shape)), axes[axis] if axis else 1


def sketched(observations: Iterable[Observation]) -> Sketch:
    counts: Counter[Entry] = Counter()
    totals: dict[tuple[Stream, int], Amounts] = {}
    for stream, tokens, at_ns, calls, time_ns in observations:
        if calls <= 0:
            continue
        counts[stream, at_ns // CELL_NS, bin_of(tokens)] += calls
        key = (stream, bucket(tokens))
        before_calls, before_ns = totals.get(key, (0, 0))
        totals[key] = (before_calls + calls, before_ns + time_ns)
    return _sketch(0, counts, totals)


def of_workloads(workloads: Iterable[Workload], at_ns: int = 0) -> Sketch:
    """What is known of a window whose sums alone were kept: it does not tell how much it varied."""
    return sketched((*stream_of(one.operator, one.dtype, one.axes), at_ns, one.calls, one.time_ns) for one in workloads)


def bucket(tokens: int, exact: int = EXACT_TOKENS, bits: int = SIGNIFICANT_BITS) -> int:
    """The least number of tokens that is counted together with this one: itself up to `exact`, its first `bits` binary
    digits above.
    """
    spare = 0 if tokens <= exact else max(0, tokens.bit_length() - bits)
    return tokens >> spare << spare


@functools.lru_cache(maxsize=1 << 16)
def bin_of(tokens: int) -> int:
    """Quarters of an octave, from one token on."""
    return math.floor(BINS_PER_OCTAVE * math.log2(max(1, tokens)))


def _sketch(level: int, counts: dict[Entry, int], totals: dict[tuple[Stream, int], Amounts]) -> Sketch:
    seen = {cell for _, cell, _ in counts}
    sketch = Sketch(level, counts, totals, range(min(seen), max(seen) + 1) if seen else range(0))
    sketch._bound()
    return sketch


def _coarser(counts: Mapping[Entry, int], up: int) -> dict[Entry, int]:
    coarse: dict[Entry, int] = {}
    for (stream, cell, bin_), calls in counts.items():
        entry = (stream, cell >> up, bin_)
        coarse[entry] = coarse.get(entry, 0) + calls
    return coarse


def _coarser_cells(cells: range, up: int) -> range:
    return range(cells.start >> up, (cells.stop - 1 >> up) + 1) if cells else cells


@functools.lru_cache(maxsize=1 << 12)
def _extents(shape: str) -> dict[str, int]:
    extents: dict[str, int] = json.loads(shape)
    return extents
