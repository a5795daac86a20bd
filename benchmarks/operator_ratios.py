"""`python -m benchmarks.operator_ratios`: per operator, a search, then its winners against eager and torch.compile.

Workloads are those of a decode step and a small prefill of the demo's model: 1 to 64 tokens. At each the winner of the
search is judged again on fresh inputs; the figure is the median over workloads of the ratio to the engine's own kernel.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.brief import Brief
from agents.swarm import pattern_agents
from benchmarks.figures import Figure, Outcome, record
from cli.table import compact_table
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness.judge import Judge
from harness.policy import promotion
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.roofline import Peaks, cached_peaks
from kernels.verdict import WorkloadTiming
from tasks import promotion as promoting
from tasks.bench import JudgeBench
from tasks.journal import Journal, JournalEntry
from tasks.search_session import SearchSession

COMMAND = "python -m benchmarks.operator_ratios"
ISSUE = 2
ATTENTION = {"query_heads": 16, "key_heads": 4, "head_dim": 64}
LINEARS = ((1024, 1024), (1024, 256), (1024, 2816), (2816, 1024), (1024, 32000))


@dataclass(frozen=True)
class Case:
    """One operator, what it is measured on, and what it has to reach."""

    operator: str
    target: float | None
    axes: tuple[Mapping[str, int], ...]
    search_s: float


def _tokens(extents: Sequence[int], **constant: int) -> tuple[Mapping[str, int], ...]:
    return tuple({"tokens": extent, **constant} for extent in extents)


DECODE_TO_PREFILL = (1, 2, 4, 8, 16, 64)
CASES = (
    Case("rms_norm", 3.0, _tokens(DECODE_TO_PREFILL, hidden=1024), 30),
    Case("fused_add_rms_norm", 3.0, _tokens(DECODE_TO_PREFILL, hidden=1024), 30),
    Case("rotary_embedding", 3.0, _tokens(DECODE_TO_PREFILL, **ATTENTION), 30),
    Case("silu_and_mul", 1.5, _tokens(DECODE_TO_PREFILL, intermediate=2816), 30),
    Case("softmax", None, tuple({"rows": rows, "columns": 32000} for rows in (1, 4, 8)), 20),
    Case(
        "skinny_linear",
        1.8,
        tuple({"tokens": tokens, "in_features": k, "out_features": n} for k, n in LINEARS for tokens in (1, 2, 4, 8)),
        150,
    ),
)


class _NoLog:
    def record(self, candidate: Candidate, verdict: object, step: int) -> None: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operator", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--search-s", type=float, help="seconds of search per operator, instead of each one's own")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        peaks = cached_peaks(Path(folder) / "peaks.json")
        for case in CASES:
            if arguments.operator and case.operator not in arguments.operator:
                continue
            seconds = arguments.search_s or case.search_s
            best, compiled = measure(case, arguments.dtype, seconds, Path(folder), peaks)
            for figure in report(case, arguments.dtype, best, compiled):
                print(f"{figure.name}: target {figure.target}, measured {figure.measured}x: {figure.verdict.value}")
                if not arguments.dry_run:
                    record(figure)
    return 0


def measure(
    case: Case, dtype: str, search_s: float, folder: Path, peaks: Peaks
) -> tuple[list[WorkloadTiming], list[WorkloadTiming]]:
    """The winner's timing per workload, against eager and against torch.compile."""
    definition = catalogue.operator(case.operator)
    workloads = tuple(
        dataclasses.replace(inputs.workload(definition, dtype, **axes), calls=1, time_ns=1) for axes in case.axes
    )
    entries = _search(case.operator, dtype, workloads, search_s, folder, peaks)
    winners = promoting.winners(entries).get((case.operator, dtype), ())
    best: dict[str, tuple[WorkloadTiming, Candidate]] = {}
    compiled: list[WorkloadTiming] = []
    with Judge(folder / "judge", promotion(), peaks) as judge:
        for candidate in winners:
            for timing in judge.judge(candidate, workloads).timings:
                found = best.get(timing.workload.digest)
                if found is None or timing.ratio_low > found[0].ratio_low:
                    best[timing.workload.digest] = (timing, candidate)
        for winner in {candidate.digest: candidate for _, candidate in best.values()}.values():
            mine = [timing.workload for timing, candidate in best.values() if candidate.digest == winner.digest]
            compiled.extend(judge.judge(winner, mine, edges=False, baseline="compile").timings)
    return [timing for timing, _ in best.values()], compiled


def _search(
    operator: str, dtype: str, workloads: tuple[Workload, ...], search_s: float, folder: Path, peaks: Peaks
) -> tuple[JournalEntry, ...]:
    from harness.policy import search

    brief = Brief(
        operator, dtype, workloads, local_cpu(), peaks.cores, peaks.memory_bandwidth_gb_s, peaks.gflops["float32"]
    )
    journal = Journal(folder / f"{operator}.jsonl")
    with Judge(folder / "judge", search(), peaks) as judge:
        session = SearchSession(JudgeBench(judge), pattern_agents(brief, 0), brief, journal, _NoLog())
        trials = sum(1 for _ in session.run(search_s))
    print(f"{operator} {dtype}: {trials} candidates in {search_s:.0f} s")
    return journal.entries()


def report(case: Case, dtype: str, best: list[WorkloadTiming], compiled: list[WorkloadTiming]) -> list[Figure]:
    """The rows of one operator, and a table of its workloads on the terminal."""
    against = {timing.workload.digest: timing for timing in compiled}
    rows = [
        [
            t.workload.label,
            f"{t.ratio:.2f}x",
            f"{t.ratio_low:.2f} to {t.ratio_high:.2f}",
            f"{against[t.workload.digest].ratio:.2f}x" if t.workload.digest in against else None,
            f"{t.candidate_ns / 1e3:.1f}",
            f"{t.bandwidth_gb_s:.1f}",
            f"{t.roofline_fraction:.0%}",
        ]
        for t in best
    ]
    print(compact_table(rows, ["workload", "vs eager", "95 %", "vs torch.compile", "us", "GB/s", "of roofline"]))
    span = f"{len(best)} of {len(case.axes)} workloads"
    met = case.target is None or (len(best) == len(case.axes) and _median(best) >= case.target)
    figures = [
        Figure(
            f"{case.operator} {dtype}: median ratio over eager",
            ISSUE,
            "shown" if case.target is None else f"at least {case.target}",
            "x",
            COMMAND,
            round(_median(best), 3),
            (round(min(t.ratio_low for t in best), 3), round(max(t.ratio_high for t in best), 3)) if best else None,
            Outcome.MET if met else Outcome.MISSED,
            note=f"{span}; the interval spans those of all workloads",
        )
    ]
    if compiled:
        figures.append(
            Figure(
                f"{case.operator} {dtype}: median ratio over torch.compile",
                ISSUE,
                "shown",
                "x",
                COMMAND,
                round(_median(compiled), 3),
                (round(min(t.ratio_low for t in compiled), 3), round(max(t.ratio_high for t in compiled), 3)),
                Outcome.MET,
                note=span,
            )
        )
    return figures


def _median(timings: Sequence[WorkloadTiming]) -> float:
    return statistics.median(t.ratio for t in timings) if timings else 0.0


if __name__ == "__main__":
    sys.exit(main())
