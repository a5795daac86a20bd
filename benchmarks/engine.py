"""`python -m benchmarks.engine`: how many candidates does the judge take in a minute, and what does it cost each?

Candidates are what the pattern agent proposes for rms_norm, those whose domain admits all eight workloads. Each is
judged as in a search: on every edge, then checked and timed on the workloads. When the agent has no new ones, they are
judged once more, for the overhead only: their builds are found.

Overhead is what is neither waiting for the build nor running the kernel: the judge's own work, and what it asks of
runners besides. Now and then the same candidate also goes to a process of its own, which opens a judge, builds, judges
and closes, while nothing else runs; the judge's own native parts are there already.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agents.agent import Agent
from agents.brief import Brief
from agents.swarm import pattern_agents
from benchmarks.figures import Figure, Outcome, record
from cli.progress import ProgressLine
from gristmill import records
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness.judge import Judge
from harness.policy import search
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.roofline import cached_peaks
from kernels.verdict import Verdict
from tasks.search_session import BUILD_AHEAD

COMMAND = "python -m benchmarks.engine"
ISSUE = 3
OPERATOR = "rms_norm"
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)
HIDDEN = 1024
COUNT = 192
FRESH = 6
WARM_AFTER = 16
"""Candidates: by then most base draws and references are there, stress values of every workload included."""
MOST_MEDIAN_MS = 40.0
MOST_P99_MS = 200.0
LEAST_PER_MINUTE = 40.0
LEAST_RATIO = 10.0
RESAMPLES = 2000
WHY_MISSED = (
    "found: five pairs a workload, each with its requests, memory to poison, change and read, and Python around them; "
    "27 checks and 43 plans of buffers; builds beside it, which share cores and caches; and what the judge looks at "
    "since decision 0034, which took it from 115 ms to this; no single part has more than 20 ms; tried: checks, "
    "surveys, samples and the comparer's rule in native code, kept plans, a mapped window, one recomputation per "
    "candidate, samples without objects of their own, real-time priority for the judge's thread throughout (from "
    "2,300 ms), and one build at a time, which was slower; a profile says that a pair in one native call would save "
    "a fifth"
)
"""Of the rows that this benchmark misses: they have one cause."""


@dataclass
class Times:
    """What was measured."""

    overheads_ms: list[float] = field(default_factory=list)
    """Of warm candidates."""
    session_s: list[float] = field(default_factory=list)
    """Per candidate of the first pass, from the verdict before to its own."""
    fresh_s: list[float] = field(default_factory=list)
    """Per process."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="judgements")
    parser.add_argument("--fresh", type=int, default=FRESH, help="candidates that get a process of their own as well")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return judge_one(arguments.one, arguments.folder)
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, ProgressLine(sys.stderr) as progress:
        times = measure(Path(folder), arguments.count, arguments.fresh, progress)
    for figure in report(times):
        shown = figure if arguments.dry_run else record(figure)
        print(f"{shown.name}: target {shown.target}, measured {shown.measured} {shown.interval}: {shown.verdict.value}")
        print(f"  {shown.note}")
    return 0


def workloads() -> tuple[Workload, ...]:
    """As captured: dense, one per power of two."""
    definition = catalogue.operator(OPERATOR)
    return tuple(
        dataclasses.replace(inputs.workload(definition, "float32", tokens=tokens, hidden=HIDDEN), calls=1, time_ns=1)
        for tokens in TOKENS
    )


def judge_one(file: Path, folder: Path) -> int:
    """The fresh process: judges one candidate, and is right if that is not its fault."""
    candidate = records.parse(Candidate, file.read_bytes(), file.name)
    with Judge(folder / "judge", search(), cached_peaks(folder / "peaks.json")) as judge:
        verdict = judge.judge(candidate, workloads())
    if not verdict.timings:
        print(f"{verdict.status.value}: {verdict.reason}", file=sys.stderr)
    return 0 if verdict.timings else 1


def measure(folder: Path, count: int, fresh: int, progress: ProgressLine) -> Times:
    """Judges so many candidates, builds running ahead, and some of them in fresh processes in between."""
    times = Times()
    progress.show("measuring what this machine can do")
    peaks = cached_peaks(folder / "peaks.json")
    brief = Brief(
        OPERATOR, "float32", workloads(), local_cpu(), peaks.cores, peaks.memory_bandwidth_gb_s, peaks.gflops["float32"]
    )
    pauses = {(number + 1) * count // (fresh + 1) for number in range(fresh)}
    unusual = 0  # judgements for which a pause gave builds more time than a session would have
    with Judge(folder / "judge", search(), peaks) as judge:
        supply = Supply(brief, judge)
        before_s = time.monotonic()
        for number, candidate in zip(range(count), supply, strict=False):
            verdict = judge.judge(candidate, brief.workloads)
            supply.learn(candidate, verdict)
            now_s = time.monotonic()
            unusual -= 1
            if unusual < 0 and not supply.again:
                times.session_s.append(now_s - before_s)
            before_s = now_s
            if number >= WARM_AFTER:
                times.overheads_ms.append(overhead_ms(verdict))
            if number in pauses:
                supply.wait()
                times.fresh_s.append(fresh_process_s(candidate, folder, judge))
                unusual, before_s = BUILD_AHEAD, time.monotonic()
            median_ms = float(np.median(times.overheads_ms or [0.0]))
            progress.show(f"{number + 1} of {count} judged, {median_ms:.0f} ms of overhead in the median")
    return times


def overhead_ms(verdict: Verdict) -> float:
    """Raises RuntimeError if it is not the verdict on a right candidate."""
    if len(verdict.timings) != len(TOKENS):
        raise RuntimeError(f"{verdict.candidate}: {verdict.status.value}: {verdict.reason}")
    return (verdict.duration_s - verdict.build_s - verdict.run_s) * 1e3


class Supply:
    """Candidates, built ahead: the agent's new ones, then all of them in turn."""

    def __init__(self, brief: Brief, judge: Judge) -> None:
        self.again = False
        """Whether what is judged now has been judged before."""
        self._brief = brief
        self._judge = judge
        self._agents = deque(pattern_agents(brief, 0))
        self._proposers: dict[str, Agent] = {}
        self._judged: dict[str, Candidate] = {}
        self._ahead: deque[Candidate] = deque()

    def __iter__(self) -> Iterator[Candidate]:
        while True:
            while len(self._ahead) < BUILD_AHEAD and (candidate := self._next()) is not None:
                self._judge.prepare(candidate)
                self._ahead.append(candidate)
            if not self._ahead:
                break
            yield self._ahead.popleft()
        self.again = True
        while True:
            yield from tuple(self._judged.values())

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        """Tells whoever proposed it."""
        if not self.again:
            self._judged[candidate.digest] = candidate
            self._proposers[candidate.digest].learn(candidate, verdict)

    def wait(self) -> None:
        """Until all that is built ahead is built."""
        for candidate in self._ahead:
            self._judge.builder.build(candidate)

    def _next(self) -> Candidate | None:
        while self._agents:
            agent = self._agents[0]
            proposed = agent.propose(self._brief, 1)
            if not proposed:
                self._agents.popleft()
            for candidate in proposed:
                if all(candidate.domain.admits(workload) for workload in self._brief.workloads):
                    self._proposers[candidate.digest] = agent
                    return candidate
        return None


def fresh_process_s(candidate: Candidate, folder: Path, warm: Judge) -> float:
    """Seconds from the start of a process that judges one candidate to its end."""
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=folder) as made:
        fresh = Path(made)
        shutil.copytree(warm.builder.cache.parent / "native", fresh / "judge" / "native")
        shutil.copy(folder / "peaks.json", fresh / "peaks.json")
        file = fresh / "candidate.json"
        file.write_bytes(records.canonical_json(candidate))
        start_s = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "benchmarks.engine", "--one", str(file), "--folder", str(fresh)], check=True
        )
        return time.monotonic() - start_s


def report(times: Times) -> list[Figure]:
    """The rows of a run."""
    per_minute = _per_minute(times.session_s)
    figures = [
        _figure(
            "judge overhead per candidate beyond build and kernel time, warm: median",
            times.overheads_ms,
            functools.partial(np.percentile, q=50),
            f"under {MOST_MEDIAN_MS:.0f}",
            lambda value: value < MOST_MEDIAN_MS,
        ),
        _figure(
            "judge overhead per candidate beyond build and kernel time, warm: p99",
            times.overheads_ms,
            functools.partial(np.percentile, q=99),
            f"under {MOST_P99_MS:.0f}",
            lambda value: value < MOST_P99_MS,
        ),
        _figure(
            "candidates judged per minute, rms_norm over 8 workloads, builds included",
            times.session_s,
            _per_minute,
            f"at least {LEAST_PER_MINUTE:.0f}",
            lambda value: value >= LEAST_PER_MINUTE,
            unit="1/min",
        ),
    ]
    if times.fresh_s:
        figures.append(
            _figure(
                "candidates per minute over a fresh process per candidate",
                times.fresh_s,
                lambda seconds: np.mean(seconds, axis=-1) * per_minute / 60,
                f"at least {LEAST_RATIO:.0f}",
                lambda value: value >= LEAST_RATIO,
                unit="x",
            )
        )
    return figures


def _per_minute(seconds: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(60 / np.mean(seconds, axis=-1))


def _figure(
    name: str,
    samples: Sequence[float],
    statistic: Callable[..., np.ndarray],
    target: str,
    reached: Callable[[float], bool],
    unit: str = "ms",
) -> Figure:
    """One row: the statistic with its interval by percentile bootstrap."""
    axis = {"axis": -1} if isinstance(statistic, functools.partial) else {}
    value = float(statistic(np.array(samples), **axis))
    resamples = np.random.default_rng(0).choice(samples, (RESAMPLES, len(samples)))
    low, high = np.percentile(statistic(resamples, **axis), (2.5, 97.5))
    met = reached(value)
    spread = f"{len(samples)} samples, {min(samples):.3g} to {max(samples):.3g}; policy search"
    return Figure(
        name,
        ISSUE,
        target,
        unit,
        COMMAND,
        round(value, 2),
        (round(float(low), 2), round(float(high), 2)),
        Outcome.MET if met else Outcome.MISSED,
        note=spread if met else f"{spread}; {WHY_MISSED}",
    )


if __name__ == "__main__":
    sys.exit(main())
