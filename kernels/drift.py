"""Drift: whether the traffic of one window is another than that of an earlier one, and what of it has moved.

A distance alone tells nothing, for no two windows of the same traffic are equal. Each window therefore also says how
far it is from itself, drawn anew from its own blocks of time (a circular block bootstrap, which keeps what belongs
together in time together). What counts is a distance beyond a floor that matters to kernels plus both windows' noise.
Traffic that a day or a week ago was at this hour what it is now has not drifted: it was known when it was compiled for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import sketch
from kernels.profile import TrafficProfile
from kernels.sketch import BINS_PER_OCTAVE, REQUESTS, Sketch, Stream

DRIFT_PSI = 0.25
"""Population stability index from which a distribution counts as another one; the usual reading, 0.1 is a small
change.
"""
DRIFT_OCTAVES = 1.0
"""Mean move of an axis that counts as drift: extents doubled or halved."""
LEAST_OCTAVES = 0.5
"""A distribution that is another one, but has moved by less beyond its noise, is the load of another quarter of an
hour, or crossed the edge of a bin.
"""
LEAST_SHARE = 0.01
"""Of the time in sampled operators: what takes less in both windows is told, and starts nothing."""
MISSING_SHARE = 1e-4
"""Share given to a bin that one side never saw, so that its logarithm exists."""
ARRIVALS_NS = 20 * 60 * 10**9
"""Windows of requests that are shorter tell no rate."""
LEAST_CELLS = 12
"""Of a window that can be drawn anew; one with fewer counts as free of noise."""
LEAST_CALLS = 5
"""Of a window, to say how its calls or requests are distributed: of fewer, two windows of the same traffic are often
octaves apart, and a bootstrap of one call shows no noise.
"""
DRAWS = 400
QUANTILE = 0.99
ARRIVALS = "arrivals"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Move:
    """How far one operator, or one property of requests, is from where it was. Distances are 0 for equal traffic, and
    symmetric.
    """

    subject: str
    """Operator, or `requests`."""
    dtype: str
    axis: str
    """That moved most, beyond what it may."""
    psi: float
    """Population stability index over shapes and octaves; of operators only."""
    psi_limit: float
    octaves: float
    """Mean distance (Wasserstein-1) of the calls on the log2 of the axis; of `arrivals`, of the rate."""
    octaves_limit: float
    before: float
    """Geometric mean of the axis; of `arrivals`, requests per second. 0 if there were no calls."""
    after: float
    time_share: float | None
    """Of the time in sampled operators, the larger of before and after; None for requests."""
    few: bool = False
    """Whether one of the windows holds too few calls to tell how they are distributed."""
    usual: str = ""
    """When this hour's traffic was the same before what is compared with: no drift, then."""

    @property
    def far(self) -> bool:
        """Whether it is further away than noise explains, in what matters."""
        if self.time_share is not None and self.time_share < LEAST_SHARE:
            return False
        if (self.before == 0) != (self.after == 0):
            return True
        if self.few:
            return False
        least = self.octaves_limit - DRIFT_OCTAVES + LEAST_OCTAVES
        return self.octaves > self.octaves_limit or (self.psi > self.psi_limit and self.octaves > least)

    @property
    def moved(self) -> bool:
        return self.far and not self.usual

    @property
    def excess(self) -> float:
        """How many times its limit it is away; the larger of both distances."""
        return max(self.psi / self.psi_limit, self.octaves / self.octaves_limit)

    @property
    def told(self) -> str:
        """In words: what moved, from where, to where, how much of the time it is."""
        share = "" if self.time_share is None else f", {self.time_share:.0%} of the time"
        subject = f"{self.subject} {self.dtype}".rstrip()
        if not self.before or not self.after:
            return f"{subject} {'is new' if self.after else 'is no longer called'}{share}"
        unit = "/s" if self.axis == ARRIVALS else ""
        return f"{subject}: {self.axis} from {number(self.before)}{unit} to {number(self.after)}{unit}{share}"


def number(mean: float) -> str:
    """Three digits, or all before the point."""
    return f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"


@dataclass(frozen=True)
class Drift:
    """Every operator that either window holds, and their requests: what moved first, and of that the furthest."""

    moves: tuple[Move, ...]

    @property
    def moved(self) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if move.moved)

    @property
    def exceeds(self) -> bool:
        """Whether anything moved so far that what was compiled for the old traffic may no longer fit."""
        return bool(self.moved)


@dataclass(frozen=True)
class Season:
    """The same hour, a day or a week before what was compiled for."""

    name: str
    profile: TrafficProfile


def drift(old: TrafficProfile, new: TrafficProfile, seasons: Sequence[Season] = ()) -> Drift:
    """Compares the traffic of two windows. What one of the seasons had just so is told, and counts as usual."""
    now = sketch_of(new)
    moves = compare(sketch_of(old), now)
    for season in seasons:
        if not any(m.far and not m.usual for m in moves):
            break
        near = {_same(m) for m in compare(sketch_of(season.profile), now) if not m.far}
        moves = [replace(m, usual=season.name) if m.far and not m.usual and _same(m) in near else m for m in moves]
    return Drift(tuple(sorted(moves, key=lambda m: (not m.moved, not m.far, -m.excess, m.subject, m.dtype, m.axis))))


def _same(move: Move) -> tuple[str, str, str]:
    """What two comparisons both tell of. Operators have one move, whichever of their axes it is."""
    return move.subject, move.dtype, move.axis if move.subject == REQUESTS else ""


def sketch_of(profile: TrafficProfile) -> Sketch:
    """Of a profile from before there were sketches, what its workloads tell."""
    return sketch.from_record(profile.sketch) if profile.sketch.streams else sketch.of_workloads(profile.workloads)


def compare(old: Sketch, new: Sketch) -> list[Move]:
    """All moves between two windows, in no order that matters."""
    streams = sorted({stream for stream, _ in (*old.totals, *new.totals)})
    subjects: dict[tuple[str, str, str], list[Stream]] = {}
    for stream in streams:
        subjects.setdefault((stream.subject, stream.dtype, stream.axis), []).append(stream)
    shares = [_time_shares(one) for one in (old, new)]
    moves = []
    for (subject, dtype, axis), members in subjects.items():
        bins = _Bins(tuple(members), old, new)
        if subject == REQUESTS:
            if bins.windows[0].calls and bins.windows[1].calls:
                moves.append(_requests_moved(bins, axis))
            continue
        share = max(side.get((subject, dtype, axis), 0.0) for side in shares)
        moves.append(_operator_moved(bins, subject, dtype, axis, share))
    arrivals = _arrivals_moved(old, new)
    return [*moves, arrivals] if arrivals else moves


def _time_shares(window: Sketch) -> dict[tuple[str, str, str], float]:
    """By operator; by calls where nothing was timed."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for (stream, _), (calls, time_ns) in window.totals.items():
        if stream.subject != REQUESTS:
            both = sums.setdefault(stream[:3], [0, 0])
            both[0] += calls
            both[1] += time_ns
    timed = sum(time_ns for _, time_ns in sums.values())
    whole = timed or sum(calls for calls, _ in sums.values())
    return {key: (time_ns if timed else calls) / whole for key, (calls, time_ns) in sums.items()}


class _Window:
    """Calls of some streams in one window, by cell (C) and column (K): their shares, and those of each draw (D)."""

    def __init__(self, counts_CK: Floats, seen: Sketch) -> None:
        self.seen = seen
        self.calls = int(counts_CK.sum())
        self.few = self.calls < LEAST_CALLS
        self.share_K: Floats = counts_CK.sum(axis=0) / max(1, self.calls)
        sums_DK = drawn(counts_CK)
        sums_DK = sums_DK[sums_DK.any(axis=1)]
        self.drawn_DK: Floats = sums_DK / np.maximum(1, sums_DK.sum(axis=1, keepdims=True))


def drawn(counts_CK: Floats, draws: int = DRAWS) -> Floats:
    """The circular block bootstrap of a sum over cells: `draws` sums (D) of blocks as long as the root of the number of
    cells. None if there are fewer than `LEAST_CELLS`. The same counts give the same draws.
    """
    cells = len(counts_CK)
    if cells < LEAST_CELLS:
        return np.empty((0, counts_CK.shape[1]))
    length = round(math.sqrt(cells))
    sums = np.cumsum(np.vstack([np.zeros((1, counts_CK.shape[1])), counts_CK, counts_CK[: length - 1]]), axis=0)
    blocks_CK = sums[length:] - sums[:-length]
    chosen = np.random.default_rng(0).multinomial(-(-cells // length), np.full(cells, 1 / cells), size=draws)
    result: Floats = chosen.astype(np.float64) @ blocks_CK
    return result


class _Bins:
    """The streams of one operator or property of requests, on columns that both windows share: (shape, bin)."""

    def __init__(self, streams: tuple[Stream, ...], old: Sketch, new: Sketch) -> None:
        self._streams = streams
        chosen = set(streams)
        both = [{e: n for e, n in one.counts.items() if e[0] in chosen} for one in (old, new)]
        self._columns = sorted({(stream, bin_) for counts in both for stream, _, bin_ in counts})
        place = {column: number for number, column in enumerate(self._columns)}
        self.windows = []
        for one, counts in zip((old, new), both, strict=True):
            matrix_CK = np.zeros((len(one.cells), len(self._columns)))
            first = one.cells.start
            for (stream, cell, bin_), calls in counts.items():
                matrix_CK[cell - first, place[stream, bin_]] += calls
            self.windows.append(_Window(matrix_CK, one))

    def _octaves(self) -> Floats:
        """Columns (K) to (shape, octave) (O). A bin between two octaves counts for both, so that nothing jumps at an
        edge.
        """
        parts: dict[tuple[int, str, int], float] = {}
        for number, (stream, bin_) in enumerate(self._columns):
            octave, rest = divmod(bin_, BINS_PER_OCTAVE)
            parts[number, stream.shape, octave] = 1 - rest / BINS_PER_OCTAVE
            if rest:
                parts[number, stream.shape, octave + 1] = rest / BINS_PER_OCTAVE
        names = sorted({(shape, octave) for _, shape, octave in parts})
        place = {name: number for number, name in enumerate(names)}
        matrix_KO = np.zeros((len(self._columns), len(names)))
        for (number, shape, octave), part in parts.items():
            matrix_KO[number, place[shape, octave]] = part
        return matrix_KO

    @property
    def few(self) -> bool:
        return any(window.few for window in self.windows)

    def positions(self) -> dict[str, Floats]:
        """By axis, the log2 of each column's extent, of axes along which there is more than one."""
        found: dict[str, list[float]] = {}
        variable = self._streams[0].axis
        names = sorted({name for stream in self._streams for name in stream.extents})
        for stream, bin_ in self._columns:
            found.setdefault(variable, []).append(bin_ / BINS_PER_OCTAVE)
            for name in names:
                found.setdefault(name, []).append(math.log2(stream.extents.get(name, 1)))
        return {name: np.array(at) for name, at in found.items() if name == variable or len(set(at)) > 1}

    def psi(self) -> tuple[float, float]:
        """Distance, and the noise of both windows."""
        octaves_KO = self._octaves()
        shares = [window.share_K @ octaves_KO for window in self.windows]
        noise = [
            _noise(_stability_index(window.drawn_DK @ octaves_KO, share))
            for window, share in zip(self.windows, shares, strict=True)
        ]
        return float(_stability_index(*shares)), sum(noise)

    def octaves(self, at_K: Floats) -> tuple[float, float]:
        """Distance along one axis, and the noise of both windows."""
        old, new = self.windows
        noise = [_noise(_transport(w.drawn_DK, w.share_K, at_K)) for w in self.windows]
        return float(_transport(old.share_K, new.share_K, at_K)), sum(noise)

    def means(self, axis: str) -> tuple[float, float]:
        """Geometric means of an axis; 0 where nothing was called."""
        return _mean(self._streams, axis, self.windows[0].seen), _mean(self._streams, axis, self.windows[1].seen)


def _noise(distances_D: Any) -> float:
    return float(np.quantile(distances_D, QUANTILE)) if len(distances_D) else 0.0


def _stability_index(p: Floats, q: Floats) -> Any:
    """`sum((q - p) ln(q / p))` over bins (Siddiqi, Credit Risk Scorecards, 2006)."""
    p, q = np.maximum(p, MISSING_SHARE), np.maximum(q, MISSING_SHARE)
    return ((q - p) * np.log(q / p)).sum(axis=-1)


def _transport(p_K: Floats, q_K: Floats, at_K: Floats) -> Any:
    """Wasserstein-1 distance on the line: the area between the two cumulative distributions."""
    order = np.argsort(at_K, kind="stable")
    ahead = np.cumsum((p_K - q_K)[..., order], axis=-1)[..., :-1]
    return (np.abs(ahead) * np.diff(at_K[order])).sum(axis=-1)


def _mean(streams: tuple[Stream, ...], axis: str, window: Sketch) -> float:
    weighted = calls_seen = 0.0
    chosen = set(streams)
    for (stream, tokens), (calls, _) in window.totals.items():
        if stream in chosen:
            extent = tokens if axis == stream.axis else stream.extents.get(axis, 1)
            weighted += calls * math.log2(max(1, extent))
            calls_seen += calls
    return float(2 ** (weighted / calls_seen)) if calls_seen else 0.0


def _operator_moved(bins: _Bins, subject: str, dtype: str, axis: str, time_share: float) -> Move:
    old, new = bins.windows
    if not old.calls or not new.calls:
        before, after = bins.means(axis)
        missing = _stability_index(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        return Move(subject, dtype, axis, float(missing), DRIFT_PSI, 0.0, DRIFT_OCTAVES, before, after, time_share)
    psi, psi_noise = bins.psi()
    along = {name: bins.octaves(at_K) for name, at_K in bins.positions().items()}
    furthest = max(along, key=lambda name: (along[name][0] - along[name][1], name == axis))
    octaves, noise = along[furthest]
    before, after = bins.means(furthest)
    return Move(
        subject,
        dtype,
        furthest,
        psi,
        DRIFT_PSI + psi_noise,
        octaves,
        DRIFT_OCTAVES + noise,
        before,
        after,
        time_share,
        bins.few,
    )


def _requests_moved(bins: _Bins, axis: str) -> Move:
    """By octaves only: lengths of few requests crowd and leave single bins by chance."""
    octaves, noise = bins.octaves(bins.positions()[axis])
    before, after = bins.means(axis)
    return Move(REQUESTS, "", axis, 0.0, DRIFT_PSI, octaves, DRIFT_OCTAVES + noise, before, after, None, bins.few)


def _arrivals_moved(old: Sketch, new: Sketch) -> Move | None:
    """The rate of requests; None where a window is too short to tell, or holds none."""
    rates, noise = [], 0.0
    for window in (old, new):
        first = window.cells.start
        counts_C = np.zeros((len(window.cells), 1))
        for (stream, cell, _), calls in window.counts.items():
            if stream == sketch.PROMPTS:
                counts_C[cell - first, 0] += calls
        if len(window.cells) * window.cell_ns < ARRIVALS_NS or not counts_C.any():
            return None
        mean = counts_C.mean()
        rates.append(float(mean / window.cell_ns * 1e9))
        sums_D = drawn(counts_C)[:, 0]
        drawn_cells = round(math.sqrt(len(counts_C))) * -(-len(counts_C) // max(1, round(math.sqrt(len(counts_C)))))
        noise += _noise(np.abs(np.log2(np.maximum(sums_D, 1) / drawn_cells / mean)))
    octaves = abs(math.log2(rates[1] / rates[0]))
    return Move(REQUESTS, "", ARRIVALS, 0.0, DRIFT_PSI, octaves, DRIFT_OCTAVES + noise, rates[0], rates[1], None)
