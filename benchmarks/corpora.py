"""`python -m benchmarks.corpora`: how many of the evil programs the judge catches, and how many honest ones it rejects.

A program is caught, or accepted, if its verdict is one of those that its header names. Programs for GPUs are judged
where there is one, and named in the note where there is none.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome, record
from cli.table import compact_table
from harness.judge import Judge
from harness.policy import JudgePolicy, screening
from kernels.candidate import Language
from kernels.roofline import cached_peaks
from kernels.verdict import Verdict
from tests.corpus import Program, judged, programs

COMMAND = "python -m benchmarks.corpora"
ISSUE = 3
EVIL = ROOT / "tests" / "evil"
HONEST = ROOT / "tests" / "honest"
DEADLINE_S = 2.0
"""For each request to a program that does not name its own."""
BUILT_AHEAD = 4


@dataclass(frozen=True)
class Judged:
    """One program and what the judge said of it."""

    program: Program
    verdict: Verdict

    @property
    def as_wanted(self) -> bool:
        return self.verdict.status in self.program.statuses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only programs whose name holds this text; writes no figures")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    policy = dataclasses.replace(screening(), deadline_s=DEADLINE_S)
    figures = []
    for name, folder, missed_means in (("evil", EVIL, "not caught"), ("honest", HONEST, "rejected")):
        chosen = [program for program in programs(folder) if arguments.only in program.name]
        here = [program for program in chosen if not program.gpu]
        print(f"{name} corpus: {len(here)} programs, {len(chosen) - len(here)} more for GPUs")
        results = list(judge_all(here, policy))
        print(missed_table(results, missed_means))
        figures.append(figure(name, results, len(chosen) - len(here)))
    for row in figures:
        print(f"{row.name}: target {row.target}, measured {row.measured:.0f} {row.unit}: {row.verdict.value}")
        if not (arguments.dry_run or arguments.only):
            record(row)
    return 0


def judge_all(chosen: Sequence[Program], policy: JudgePolicy) -> Iterator[Judged]:
    """Judges program after program with one judge, building a few ahead, and says how far it is."""
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        peaks = cached_peaks(Path(folder) / "peaks.json")
        with Judge(Path(folder) / "judge", policy, peaks) as judge:
            for number, program in enumerate(chosen, start=1):
                for later in chosen[number - 1 : number - 1 + BUILT_AHEAD]:
                    prepare(judge, later)
                start = time.monotonic()
                result = Judged(program, judged(program, judge))
                mark = "" if result.as_wanted else "  <--"
                elapsed = f"{time.monotonic() - start:5.2f} s"
                print(
                    f"{number:4}/{len(chosen)} {program.name:50} {result.verdict.status:12} {elapsed}{mark}", flush=True
                )
                yield result


def prepare(judge: Judge, program: Program) -> None:
    """Starts the build of a program that has one."""
    candidate = program.candidate()
    if candidate.language is Language.CPP:
        judge.prepare(candidate)


def missed_table(results: Sequence[Judged], means: str) -> str:
    """What did not get one of its verdicts, with the reason that the judge gave."""
    rows = [
        [r.program.name, " or ".join(r.program.statuses), str(r.verdict.status), r.verdict.reason[:100]]
        for r in results
        if not r.as_wanted
    ]
    return compact_table(rows, [means, "expected", "found", "reason"]) if rows else f"none was {means}"


def figure(name: str, results: Sequence[Judged], for_gpus: int) -> Figure:
    """The row of one corpus: what was caught of the evil, or rejected of the honest."""
    total, right = len(results), sum(result.as_wanted for result in results)
    elsewhere = f"{for_gpus} more for GPUs, not judged here" if for_gpus else ""
    if name == "evil":
        title, target, measured = "evil corpus caught", f"all {total}", right
    else:
        title, target, measured = "honest corpus rejected", "none", total - right
    outcome = Outcome.MET if results and right == total else Outcome.MISSED
    return Figure(title, ISSUE, target, f"of {total}", COMMAND, float(measured), verdict=outcome, note=elsewhere)


if __name__ == "__main__":
    sys.exit(main())
