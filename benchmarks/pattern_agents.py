"""`python -m benchmarks.pattern_agents`: what pattern agents find alone, in a minute per operator.

Two questions. Does a minute reach the targets of the first issue, over the engine's own kernels? And how near does it
come to the best that was ever found: by a search of another seed that has twice as long, in the same run, and by the
record in docs/figures.json? At each workload the minute's winner runs in pairs against the longer search's.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.brief import Brief
from benchmarks import figures
from benchmarks.figures import Figure, Outcome, record
from benchmarks.operator_ratios import CASES, Case
from cli.table import compact_table
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness.judge import Judge
from harness.policy import promotion, search
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.roofline import Peaks, cached_peaks
from kernels.verdict import Verdict, WorkloadTiming
from tasks import promotion as promoting
from tasks.bench import JudgeBench
from tasks.journal import Journal
from tasks.recruitment import Staff, session_for

COMMAND = "python -m benchmarks.pattern_agents"
ISSUE = 4
DTYPE = "float32"
SEARCH_S = 60.0
LONGER = 2.0
AGAIN_S = 1.5
"""Of measuring per workload in a second judgement, which `promotion` gives 6: intervals are wider, and told."""
LEAST_SHARE = 0.9


class NoLog:
    def record(self, candidate: Candidate, verdict: Verdict, step: int) -> None: ...


@dataclass(frozen=True)
class Winner:
    """The best of one search on one workload, judged again."""

    candidate: Candidate
    timing: WorkloadTiming


@dataclass(frozen=True)
class Share:
    """How fast the short search's winner is on one workload, of the longer one's: 1 is as fast."""

    workload: Workload
    ratio: float
    low: float
    high: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operator", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--search-s", type=float, default=SEARCH_S, help="seconds of the short search")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        peaks = cached_peaks(Path(folder) / "peaks.json")
        for case in CASES:
            if not arguments.operator or case.operator in arguments.operator:
                for figure in measure(case, arguments.search_s, Path(folder), peaks):
                    shown = figure if arguments.dry_run else record(figure)
                    print(f"{shown.name}: target {shown.target}, measured {shown.measured}: {shown.verdict.value}")
                    print(f"  {shown.note}", flush=True)
    return 0


def measure(case: Case, search_s: float, folder: Path, peaks: Peaks) -> list[Figure]:
    """The rows of one operator."""
    definition = catalogue.operator(case.operator)
    workloads = tuple(
        dataclasses.replace(inputs.workload(definition, DTYPE, **axes), calls=1, time_ns=1) for axes in case.axes
    )
    short, trials = _winners(case.operator, workloads, 0, search_s, folder, peaks)
    longer, more = _winners(case.operator, workloads, 1, search_s * LONGER, folder, peaks)
    with Judge(folder / "judge", promotion(AGAIN_S), peaks) as judge:
        shares = [_share(judge, w, short.get(w.digest), longer.get(w.digest)) for w in workloads]
    _print_table(short, longer, shares)
    searched = f"{trials} candidates in {search_s:.0f} s, {more} in {search_s * LONGER:.0f} s"
    return figures_of(case, short, shares, searched)


def _winners(
    operator: str, workloads: tuple[Workload, ...], seed: int, search_s: float, folder: Path, peaks: Peaks
) -> tuple[dict[str, Winner], int]:
    """By digest of the workload, after a second judgement; and how many candidates were judged."""
    speed = peaks.memory_bandwidth_gb_s, peaks.gflops[DTYPE]
    brief = Brief(operator, DTYPE, workloads, local_cpu(), peaks.cores, *speed)
    journal = Journal(folder / f"{operator}-{seed}.jsonl")
    with Judge(folder / "judge", search(), peaks) as judge:
        session = session_for(JudgeBench(judge), brief, journal, NoLog(), Staff(), seed=seed)
        trials = sum(1 for _ in session.run(search_s))
    best: dict[str, Winner] = {}
    with Judge(folder / "judge", promotion(AGAIN_S), peaks) as judge:
        for candidate in promoting.winners(journal.entries()).get((operator, DTYPE), ()):
            for timing in judge.judge(candidate, workloads).timings:
                found = best.get(timing.workload.digest)
                if found is None or timing.ratio_low > found.timing.ratio_low:
                    best[timing.workload.digest] = Winner(candidate, timing)
    return best, trials


def _share(judge: Judge, workload: Workload, short: Winner | None, longer: Winner | None) -> Share:
    """Without a winner the engine's own kernel stays, at which ratios are 1."""
    if longer is None or (short is not None and short.candidate.digest == longer.candidate.digest):
        return Share(workload, 1.0, 1.0, 1.0)
    if short is None:
        timing = longer.timing
        return Share(workload, 1 / timing.ratio, 1 / timing.ratio_high, 1 / timing.ratio_low)
    timings = judge.judge(short.candidate, [workload], edges=False, baseline=longer.candidate).timings
    if not timings:
        return Share(workload, 0.0, 0.0, 0.0)
    return Share(workload, timings[0].ratio, timings[0].ratio_low, timings[0].ratio_high)


def figures_of(case: Case, short: Mapping[str, Winner], shares: Sequence[Share], searched: str) -> list[Figure]:
    """What a minute reached over the engine, and of the best ever found."""
    ratios = [winner.timing.ratio for winner in short.values()]
    median = statistics.median(ratios + [1.0] * (len(shares) - len(ratios)))
    whole = len(ratios) == len(shares)
    reached = case.target is None or (whole and median >= case.target)
    name = f"pattern agents alone, {case.operator} {DTYPE}"
    worst = min(shares, key=lambda share: share.ratio)
    kept = recorded_ratio(case.operator)
    of_record = median / kept if kept else 1.0
    least = min(worst.ratio, of_record)
    note = f"worst workload: {worst.workload.label}; median {statistics.median(s.ratio for s in shares):.2f}"
    return [
        Figure(
            f"{name}: median ratio over eager after 60 s",
            ISSUE,
            "shown" if case.target is None else f"at least {case.target}",
            "x",
            COMMAND,
            round(median, 3),
            _span(short.values()),
            Outcome.MET if reached else Outcome.MISSED,
            note=f"{len(ratios)} of {len(shares)} workloads; {searched}",
        ),
        Figure(
            f"{name}: speed after 60 s, of the best ever found",
            ISSUE,
            f"at least {LEAST_SHARE}",
            "",
            COMMAND,
            round(least, 3),
            (round(worst.low, 3), round(worst.high, 3)) if least == worst.ratio else None,
            Outcome.MET if least >= LEAST_SHARE else Outcome.MISSED,
            note=f"{note}; {of_record:.2f} of the recorded median" if kept else f"{note}; no record on this host",
        ),
    ]


def recorded_ratio(operator: str) -> float | None:
    """The median ratio over eager that the first issue's benchmark recorded, on hardware like this."""
    name, host = f"{operator} {DTYPE}: median ratio over eager", figures.describe_host(local_cpu())
    return next((row.measured for row in figures.load() if row.name == name and row.host == host), None)


def _span(winners: Iterable[Winner]) -> tuple[float, float] | None:
    timings = [winner.timing for winner in winners]
    if not timings:
        return None
    return round(min(t.ratio_low for t in timings), 3), round(max(t.ratio_high for t in timings), 3)


def _print_table(short: Mapping[str, Winner], longer: Mapping[str, Winner], shares: Sequence[Share]) -> None:
    def ratio(winner: Winner | None) -> str | None:
        return f"{winner.timing.ratio:.2f}x" if winner is not None else None

    rows = []
    for share in shares:
        key = share.workload.digest
        paired = [f"{share.ratio:.2f}", f"{share.low:.2f} to {share.high:.2f}"]
        rows.append([share.workload.label, ratio(short.get(key)), ratio(longer.get(key)), *paired])
    print(compact_table(rows, ["workload", "short search", "longer search", "in pairs", "95 %"]))


if __name__ == "__main__":
    sys.exit(main())
