"""Recall: what memory has for one search, found by nearness. Pure.

Shapes are near when few doublings lie between them: the distance of two workloads is the Euclidean one between the
base-2 logarithms of their axes.

Shape suffixes: W workloads, D draws.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from agents import lesson
from agents.bandit import PatternBandit, nearness, priors
from agents.memory import CandidateEntry, Contents, Recollection, Remembered, family_of
from gristmill import records
from gristmill.workload import Workload
from kernels.candidate import Candidate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REACH = 2.0
"""Doublings over which a gain is believed to shrink, as a logarithm, to 1/e of itself."""
MISSING_AXIS = 4.0
"""Doublings that an axis counts which only one of two workloads has."""
RECALLED_CANDIDATES = 24
RECALLED_LESSONS = 100
FIRST = 2
"""Remembered combinations that a pattern agent tries before its defaults, per range of traffic."""
JUDGED_FIRST = 12
"""Candidates that a search begins with, at most."""
LEAST_ADDED = 0.01
"""What the next of them has to add, in expectation, to the best of the others, as the logarithm of a ratio: one per
cent of the time.
"""
ASTRAY = 0.1
"""By how much, as the logarithm of a ratio, a promise is off: a search times in a hurry, and other shapes are other."""
DRAWS = 64
"""Of what every candidate may turn out to give on a workload, from which expectations are taken."""
MAX_QUERY = 200


def recollection(
    contents: Iterable[Contents], sources: Mapping[str, Candidate], operator: str, dtype: str, hardware: str
) -> Recollection:
    """What all shelves have for one search. Candidates whose source is not given are left out."""
    shelves = list(contents)
    found = [
        Remembered(sources[entry.candidate], entry)
        for entry in wanted_entries(shelves, operator, dtype, hardware)
        if entry.candidate in sources
    ]
    family = family_of(operator)
    lessons = [one for shelf in shelves for one in shelf.lessons if family_of(one.operator) == family]
    return Recollection(
        operator,
        dtype,
        hardware,
        tuple(record for shelf in shelves for record in shelf.records),
        tuple(lesson.ranked(lessons, operator, hardware)[:RECALLED_LESSONS]),
        tuple(found),
    )


def wanted_entries(
    contents: Iterable[Contents], operator: str, dtype: str, hardware: str
) -> tuple[CandidateEntry, ...]:
    """The entries that a recollection is made of, best first: their sources have to be read."""
    entries = [
        entry for shelf in contents for entry in shelf.candidates if (entry.operator, entry.dtype) == (operator, dtype)
    ]
    entries.sort(key=lambda e: (-nearness(operator, e.hardware, operator, hardware), -e.ratio, e.candidate))
    return tuple(entries[:RECALLED_CANDIDATES])


def bandit_for(recalled: Recollection, seed: int, now_ms: int) -> PatternBandit:
    """A bandit that starts with what memory knows of each pattern."""
    return PatternBandit(priors(recalled.records, recalled.operator, recalled.hardware, now_ms), seed)


def distance(one: Workload, other: Workload) -> float:
    """In doublings, over all axes."""
    total = 0.0
    for axis in {*one.axes, *other.axes}:
        if axis in one.axes and axis in other.axes:
            total += math.log2(max(1, one.axes[axis]) / max(1, other.axes[axis])) ** 2
        else:
            total += MISSING_AXIS**2
    return math.sqrt(total)


def ranked_for(
    remembered: Sequence[Remembered], workloads: Sequence[Workload], weights: Sequence[float], hardware: str
) -> tuple[Remembered, ...]:
    """Remembered candidates by what they promise on these workloads, the best first; those without promise left out.

    The one with the highest total comes first, then those that promise most on a single workload (specialists), by the
    workload's weight, then the others. A gain proven elsewhere counts less the farther its workload or hardware is.
    """
    promises = [[promise(one.entry, workload, hardware) for workload in workloads] for one in remembered]
    totals = [sum(share * value for share, value in zip(weights, of_one, strict=True)) for of_one in promises]
    order = sorted(range(len(remembered)), key=lambda i: (-totals[i], remembered[i].entry.candidate))
    chosen = [i for i in order[:1] if totals[i] > 0]
    for place in sorted(range(len(workloads)), key=lambda place: (-weights[place], workloads[place].digest)):
        best = max(order, key=lambda i: promises[i][place], default=None)
        if best is not None and promises[best][place] > 0:
            chosen.append(best)
    chosen += [i for i in order if totals[i] > 0]
    return tuple(remembered[i] for i in dict.fromkeys(chosen))


def first(
    options: Sequence[tuple[Candidate, CandidateEntry]],
    workloads: Sequence[Workload],
    weights: Sequence[float],
    hardware: str,
) -> list[Candidate]:
    """What to judge before all else: each candidate adds the most, in expectation, to the best of those before it for
    the workloads together, until the next one would add next to nothing. Several that promise alike are all of use,
    since nobody knows which of them keeps its promise here.

    Args:
        options: candidates as they would run here, with what speaks for each.
        weights: shares of the engine's time, of the workloads in order.
    """
    import numpy as np  # where something is remembered: who only reads memory does without

    share_W = np.array(weights)
    hopes = {candidate.digest: _hopes(candidate, entry, workloads, hardware) for candidate, entry in options}
    best_WD = np.zeros((len(workloads), DRAWS))
    chosen: list[str] = []
    while hopes and len(chosen) < JUDGED_FIRST:
        added = {d: float(share_W @ np.maximum(hope_WD - best_WD, 0.0).mean(1)) for d, hope_WD in hopes.items()}
        digest = max(sorted(added), key=lambda one: added[one])
        if added[digest] < LEAST_ADDED:
            break
        chosen.append(digest)
        best_WD = np.maximum(best_WD, hopes.pop(digest))
    by_digest = {candidate.digest: candidate for candidate, _ in options}
    return [by_digest[digest] for digest in chosen]


def _hopes(
    candidate: Candidate, entry: CandidateEntry, workloads: Sequence[Workload], hardware: str
) -> NDArray[np.float64]:
    """Logarithms of ratios that it may turn out to have, W by D. What was written anew from one entry for several
    ranges is the same kernel, and turns out the same.
    """
    import numpy as np

    promises_W = np.array([promise(entry, w, hardware) if candidate.domain.admits(w) else 0.0 for w in workloads])
    chance = np.random.default_rng(int(entry.candidate[:15], 16))
    off_WD = ASTRAY * chance.standard_normal((len(workloads), DRAWS))
    return np.where(promises_W[:, None] > 0, np.maximum(0.0, promises_W[:, None] + off_WD), 0.0)


def promise(entry: CandidateEntry, workload: Workload, hardware: str) -> float:
    """The logarithm of the ratio to hope for, from the nearest workload that was timed; 0 if it was not faster there.
    What was proven on a workload or hardware farther away counts less.
    """
    if not entry.timings:
        return 0.0
    near = nearness(entry.operator, entry.hardware, entry.operator, hardware)
    off, nearest = min(
        ((distance(timing.workload, workload), timing) for timing in entry.timings),
        key=lambda pair: (pair[0], pair[1].workload.digest),
    )
    return near * max(0.0, math.log(max(nearest.ratio_low, 1e-6))) * math.exp(-off / REACH)


def search(contents: Iterable[Contents], query: str, limit: int) -> tuple[str, ...]:
    """Lines that share words with the query, those with most of them first, then the more useful.

    A line is found by the words of its operator, family, pattern, hardware and text, numbers included, and by what they
    begin with.
    """
    asked = set(_words(query[:MAX_QUERY]))
    found: list[tuple[int, float, str]] = []
    for shelf in contents:
        for text, searched, use in _lines(shelf):
            words = _words(searched)
            shared = sum(any(word.startswith(one) for word in words) for one in asked)
            if shared:
                found.append((shared, use, text))
    best = sorted(set(found), key=lambda line: (-line[0], -line[1], line[2]))
    return tuple(dict.fromkeys(text for _, _, text in best))[: max(0, limit)]


def _lines(contents: Contents) -> Iterable[tuple[str, str, float]]:
    """Each line with the text that it is found by, and its use."""
    for one in contents.lessons:
        text = f"{one.operator}: {lesson.sentence(one, one.operator, one.hardware)}"
        yield text, f"{family_of(one.operator)} {one.hardware} {one.topic} {text}", one.worth
    for record in contents.records:
        text = (
            f"{record.operator}: {record.pattern} was tried {record.tried} times on {record.hardware}: {record.built} "
            f"built, {record.correct} correct, {record.won} faster, best {record.best:.2f}x"
        )
        yield text, f"{family_of(record.operator)} {text}", 0.5
    for entry in contents.candidates:
        text = (
            f"{entry.operator} {entry.dtype}: candidate {records.short(entry.candidate)} by {entry.pattern} reached "
            f"{entry.ratio:.2f}x on {entry.hardware}"
        )
        sizes = " ".join(timing.workload.label for timing in entry.timings)
        yield text, f"{family_of(entry.operator)} {text} {sizes}", 1 - 0.5 / max(1.0, entry.ratio)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", text.lower())
