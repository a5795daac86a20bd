"""`python -m benchmarks.timing`: can the judge's timings be trusted on a busy machine?

Two questions, on several operators and sizes, with both cores loaded by other processes. How often is one of two
identical candidates called `faster`? And how often is one found that really is 5 % faster, and after how long? The 5 %
are made by a kernel that does some of its rows twice: how many make 5 % is found first, by several long measurements
on fresh runners.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure, Outcome, record
from benchmarks.load import neighbours
from cli.progress import ProgressLine
from gristmill.workload import Workload
from harness import policy, probes
from harness.calibration import judge_equals, measure_peaks, share_interval
from harness.judge import Judge
from harness.policy import JudgePolicy
from harness.replication import RUNS, judge_repeatedly
from harness.timing import StopRule
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict

COMMAND = "python -m benchmarks.timing"
ISSUE = 3
TRIALS = 1000
GAIN_TRIALS = 60
MOST_FALSE = 0.01
LEAST_FOUND = 0.95
GAIN = 0.05
GAIN_BUDGET_S = 20.0 / RUNS
"""Of measuring, per run."""
EQUALS_BUDGET_S = 2.0
"""Of measuring, per run of identical candidates; most are told to be equal long before."""
TUNING_ROUNDS = 4
TUNING_RUNS = 3
TUNING = StopRule(min_pairs=400, max_pairs=400, budget_s=10.0, tolerance=0.0, margin=0.0, gain=-0.9)
CLOSE = 0.006
"""How near to 5 % the known gain has to lie: rows are whole."""
GAIN_CASES = (
    ("rms_norm", {"tokens": 256, "hidden": 1024}),
    ("softmax", {"rows": 128, "columns": 512}),
    ("skinny_linear", {"tokens": 1, "in_features": 512, "out_features": 512}),
    ("skinny_linear", {"tokens": 4, "in_features": 1024, "out_features": 1024}),
)
"""Of rows so many that some of them make 5 %."""


@dataclass(frozen=True)
class Known:
    """A workload on which the plain probe is faster than one with `extra` rows more, by a known share."""

    workload: Workload
    extra: int
    gain: float


@dataclass
class Share:
    """How many of how many, and the seconds that each took with all its runs, checks included."""

    trials: int
    found: int
    seconds: list[float]

    @property
    def share(self) -> float:
        return self.found / self.trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="pairs of identical candidates")
    parser.add_argument(
        "--gain-trials", type=int, default=GAIN_TRIALS, help="candidates that are 5 %% faster, per host"
    )
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, ProgressLine(sys.stderr) as progress:
        bench = Bench(Path(folder), progress)
        figures = [equals_figure(bench.equals(arguments.trials))] if arguments.trials else []
        if arguments.gain_trials:
            known = bench.known_gains()
            for loaded in (False, True):
                figures.append(gain_figure(bench.gains(known, arguments.gain_trials, loaded), known, loaded))
    for figure in figures:
        shown = figure if arguments.dry_run else record(figure)
        print(f"{shown.name}: target {shown.target}, measured {shown.measured} {shown.interval}: {shown.verdict.value}")
        print(f"  {shown.note}")
    return 0


class Bench:
    """Judges of several policies on one folder."""

    def __init__(self, folder: Path, progress: ProgressLine) -> None:
        self._folder = folder
        self._progress = progress
        self._progress.show("measuring what this machine can do")
        self._peaks = measure_peaks(folder / "peaks.json")

    @contextlib.contextmanager
    def _judge(self, chosen: JudgePolicy) -> Iterator[Judge]:
        with Judge(self._folder / "judge", chosen, self._peaks) as judge:
            yield judge

    def equals(self, trials: int) -> Share:
        """Identical candidates, on all probes in turn, among busy neighbours."""
        cases = probes.workloads()
        share = Share(0, 0, [])
        with neighbours(_cores()), self._judge(policy.proof(EQUALS_BUDGET_S)) as judge:
            for number in range(trials):
                verdict = judge_equals(judge, cases[number % len(cases)], judge.policy.min_gain)
                _count(share, verdict)
                if verdict.status is Status.FASTER:
                    print(f"identical, called faster: {verdict.reason}", file=sys.stderr)
                self._progress.show(f"identical candidates, loaded: {share.found} of {share.trials} called faster")
        return share

    def known_gains(self) -> list[Known]:
        """One per workload, where as many rows as make 5 % could be found.

        What a row done twice costs is taken from all measurements so far, on fresh runners each time: it is the same
        for every row, while a single measurement may be off by a per cent or two.
        """
        known = []
        with self._judge(replace(policy.proof(), stop=TUNING)) as judge:
            for operator, axes in GAIN_CASES:
                workload = inputs.workload(catalogue.operator(operator), probes.DTYPE, **axes)
                rows = probes.rows(workload)
                extra, tried = max(1, round(GAIN * rows)), list[tuple[int, float]]()
                for _ in range(TUNING_ROUNDS):
                    tried.append((extra, self._long_measurement(judge, workload, extra)))
                    per_row = sum(n * gain for n, gain in tried) / sum(n * n for n, _ in tried)
                    extra = min(rows, max(1, round(GAIN / max(per_row, 1e-9))))
                    self._progress.show(
                        f"{workload.label}: {extra} of {rows} rows once more cost {per_row * extra:.1%}"
                    )
                if abs(per_row * extra - GAIN) <= CLOSE:
                    known.append(Known(workload, extra, per_row * extra))
        return known

    def _long_measurement(self, judge: Judge, workload: Workload, extra: int) -> float:
        ratios = [_against(judge, workload, extra).timings[0].ratio for _ in range(TUNING_RUNS)]
        return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)) - 1

    def gains(self, known: list[Known], trials: int, loaded: bool) -> Share:
        """The plain probe against the one that does 5 % more."""
        share = Share(0, 0, [])
        with neighbours(_cores() if loaded else 0), self._judge(policy.proof(GAIN_BUDGET_S)) as judge:
            for number in range(trials if known else 0):
                one = known[number % len(known)]
                plain, more = _probes(one.workload, one.extra)
                gain = judge.policy.min_gain
                _count(share, judge_repeatedly(judge, plain, [one.workload], gain, edges=False, baseline=more))
                self._progress.show(f"{_host(loaded)}: {share.found} of {share.trials} gains of 5 % found")
        return share


def _against(judge: Judge, workload: Workload, extra: int) -> Verdict:
    """The plain probe against the one that does so many rows once more."""
    plain, more = _probes(workload, extra)
    verdict = judge.judge(plain, [workload], edges=False, baseline=more)
    if not verdict.timings:
        raise RuntimeError(f"{workload.label}: {verdict.status.value}: {verdict.reason}")
    return verdict


def _probes(workload: Workload, extra: int) -> tuple[Candidate, Candidate]:
    return probes.probe(workload.operator), probes.probe(workload.operator, extra)


def _count(share: Share, verdict: Verdict) -> None:
    share.trials += 1
    share.found += verdict.status is Status.FASTER
    share.seconds.append(verdict.duration_s)


def equals_figure(share: Share) -> Figure:
    """The row for identical candidates."""
    return Figure(
        "identical candidate called faster, both cores loaded",
        ISSUE,
        f"at most {MOST_FALSE:.0%}",
        "%",
        COMMAND,
        round(100 * share.share, 3),
        _percent(share),
        Outcome.MET if share.share <= MOST_FALSE else Outcome.MISSED,
        note=f"{share.found} of {share.trials} trials on {len(probes.CASES)} workloads; policy proof, "
        f"{statistics.median(share.seconds):.2f} s each in the median",
    )


def gain_figure(share: Share, known: list[Known], loaded: bool) -> Figure:
    """The row for real gains. A share of nothing, because no workload could be tuned, is not measured."""
    name = f"real 5 % gain called faster within 20 s of measuring, {_host(loaded)}"
    target = f"at least {LEAST_FOUND:.0%}"
    if not share.trials:
        return Figure(name, ISSUE, target, "%", COMMAND, note="no probe could be made to cost 5 % more")
    gains = ", ".join(f"{one.workload.operator} {one.gain:.1%}" for one in known)
    return Figure(
        name,
        ISSUE,
        target,
        "%",
        COMMAND,
        round(100 * share.share, 2),
        _percent(share),
        Outcome.MET if share.share >= LEAST_FOUND else Outcome.MISSED,
        note=f"{share.found} of {share.trials}; gains by long measurement: {gains}; found after "
        f"{statistics.median(share.seconds):.1f} s in the median, {max(share.seconds):.1f} s at most",
    )


def _percent(share: Share) -> tuple[float, float]:
    low, high = share_interval(share.found, share.trials)
    return round(100 * low, 3), round(100 * high, 3)


def _host(loaded: bool) -> str:
    return "both cores loaded" if loaded else "no load"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(code)
