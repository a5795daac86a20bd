"""`python -m benchmarks.hostile`: thousands of hostile candidates in a row, and what the judge has left of them.

A dozen bad deeds, each built once, come in random order through one judge. Afterwards an honest candidate must still
get its verdict; and processes, descriptors, shared memory, files and control groups must be what they were before.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.census import Census, Enumerator, resident_bytes
from benchmarks.figures import ROOT, Figure, Outcome, record
from cli.progress import ProgressLine
from cli.table import compact_table
from gristmill.domain import Domain
from harness.judge import Judge
from harness.policy import screening
from kernels import catalogue, inputs
from kernels.candidate import Candidate, Language, Origin
from kernels.roofline import cached_peaks
from kernels.verdict import Status

COMMAND = "python -m benchmarks.hostile"
ISSUE = 3
OPERATOR = "rms_norm"
COUNT = 10_000
DEADLINE_S = 0.05
DEVICE = "hostile"
"""Of its own: nothing here is compared by its speed, so nobody need wait for the lease."""
HONEST = ROOT / "tests" / "harness" / "sources" / "rms_norm.cpp"
HONEST_TRIES = 5
TENTHS = 10
FLAT = 1.05
RESAMPLES = 2000
RIGHT = (Status.FASTER, Status.SLOWER)
CONVICTED = (Status.CRASHED, Status.TIMED_OUT, Status.INCORRECT, Status.CHEATED)

PROLOGUE = """
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gristmill_kernel.h"
static void *forever(void *unused) { for (;;) pause(); return unused; }
static void fill(int descriptor, size_t bytes) {
    const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (block != MAP_FAILED) memset(block, 1, bytes);
}
"""
DEEDS = {
    "reads address 8": "return *(volatile int *)8;",
    "hangs": "for (volatile int n = 0;; n = n + 1) {}",
    "sleeps": "for (;;) pause();",
    "forks": "for (;;) if (fork() == 0) fork();",
    "starts threads": "pthread_t made; for (;;) pthread_create(&made, nullptr, forever, nullptr);",
    "starts threads and returns": "pthread_t made; for (int n = 0; n < 500; n++)"
    " pthread_create(&made, nullptr, forever, nullptr); return 0;",
    "fills memory": "for (;;) fill(-1, 1 << 24);",
    "fills shared memory": "for (int n = 3; n < 64; n++) fill(n, 1 << 26); return 0;",
    "fills /tmp": "static char block[1 << 20]; for (int n = 0; n < 4096; n++) { char name[32];"
    ' snprintf(name, sizeof name, "/tmp/%d", n); const int to = open(name, O_CREAT | O_WRONLY, 0600);'
    " if (to >= 0 && write(to, block, sizeof block) < 0) break; } return 0;",
    "exits": "_exit(0);",
    "aborts": "abort();",
    "writes everywhere": "for (int n = 3; n < 64; n++) for (int k = 0; k < 9; k++)"
    ' if (write(n, "garbage, garbage and more of it", 31) < 0) break; return 0;',
    "closes everything": "for (int n = 0; n < 1024; n++) close(n); return 0;",
    "signals itself": "for (int n = 1; n < 65; n++) kill(0, n); return 0;",
    "opens sockets": "for (int n = 0; n < 64; n++) socket(n % 2 ? AF_INET : AF_UNIX, SOCK_STREAM, 0); return 0;",
    "recurses": "volatile char room[4096]; room[0] = 1; return gm_run(call) + room[0];",
}

PYTHON_PROLOGUE = "import ctypes, os, signal, sys, threading, time\nimport torch\n"
PYTHON_DEEDS = {
    "python: reads address 8": "ctypes.string_at(8)",
    "python: hangs": "while True: pass",
    "python: forks": "while True: os.system('true')",
    "python: fills memory": "kept = [bytearray(1 << 26) for _ in range(1 << 20)]",
    "python: exits": "os._exit(0)",
    "python: starts threads": "[threading.Thread(target=time.sleep, args=(9,)).start() for _ in range(999)]",
    "python: writes everywhere": "[os.write(n, b'garbage') for n in range(3, 64)]",
    "python: closes everything": "os.closerange(0, 1024)",
}


@dataclass
class Course:
    """What happened to the candidates, in their order."""

    deeds: list[str] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    elapsed_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    honest: Status | None = None

    def table(self) -> str:
        """Per deed: how many, which verdicts, how long."""
        verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        times: dict[str, list[float]] = defaultdict(list)
        for deed, status, elapsed in zip(self.deeds, self.statuses, self.elapsed_s, strict=True):
            verdicts[deed][status.value] += 1
            times[deed].append(elapsed * 1e3)
        rows = [
            [
                deed,
                len(times[deed]),
                ", ".join(f"{count} {status}" for status, count in verdicts[deed].most_common()),
                f"{statistics.median(times[deed]):.1f}",
                f"{statistics.mean(times[deed]):.1f}",
                f"{max(times[deed]):.0f}",
            ]
            for deed in sorted(times)
        ]
        return compact_table(rows, ["deed", "times", "verdicts", "median ms", "mean ms", "most ms"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=int, default=COUNT, help=f"candidates (default {COUNT}); only a full run counts"
    )
    parser.add_argument("--only", default="", help="only deeds whose name holds this text")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    deeds = [deed for deed in (*DEEDS, *PYTHON_DEEDS) if arguments.only in deed]
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        course, left = run_all(Path(folder), random.Random(arguments.seed).choices(deeds, k=arguments.count))
    print(course.table())
    rows = figures(course, left)
    for row in rows:
        interval = f" [{row.interval[0]:.3f}, {row.interval[1]:.3f}]" if row.interval else ""
        print(f"{row.name}: target {row.target}, measured {row.measured} {row.unit}{interval}: {row.verdict.value}")
        print(f"  {row.note}")
        if not (arguments.dry_run or arguments.only or arguments.count < COUNT):
            record(row)
    return 0 if all(row.verdict is Outcome.MET for row in rows) else 1


def run_all(folder: Path, deeds: Sequence[str]) -> tuple[Course, Census]:
    """Judges them in order, then an honest one, and ends the judge; returns also what is left then."""
    peaks = cached_peaks(folder / "peaks.json")
    policy = dataclasses.replace(screening(), deadline_s=DEADLINE_S)
    workload = inputs.workload(catalogue.operator(OPERATOR), "float32", tokens=1, hidden=64)
    course, candidates = Course(), {deed: cpp(PROLOGUE + entry(text)) for deed, text in DEEDS.items()}
    candidates |= {deed: python(text) for deed, text in PYTHON_DEEDS.items()}
    honest = cpp(HONEST.read_text())
    enumerator = Enumerator(folder / "judge")
    with Judge(folder / "judge", policy, peaks, device=DEVICE) as judge, ProgressLine(sys.stderr) as progress:
        for one in [*candidates.values(), honest]:  # all is built, loaded and warm
            judge.judge(one, [workload], edges=False)
        alive = enumerator.count()
    before = enumerator.count()
    with Judge(folder / "judge", policy, peaks, device=DEVICE) as judge, ProgressLine(sys.stderr) as progress:
        for number, deed in enumerate(deeds, start=1):
            start = time.monotonic()
            verdict = judge.judge(candidates[deed], [workload], edges=False)
            course.elapsed_s.append(time.monotonic() - start)
            course.deeds.append(deed)
            course.statuses.append(verdict.status)
            course.resident_bytes.append(resident_bytes())
            mean_ms = 1e3 * statistics.mean(course.elapsed_s[-200:])
            progress.show(
                f"{number} of {len(deeds)}, {mean_ms:.0f} ms each, {course.resident_bytes[-1] >> 20} MiB resident"
            )
            if number % max(1, len(deeds) // TENTHS) == 0:
                print(
                    f"after {number}: {enumerator.count()} (a judge at work: {alive.processes} processes)", flush=True
                )
        for _ in range(HONEST_TRIES):
            course.honest = judge.judge(honest, [workload], edges=False).status
            if course.honest in RIGHT:
                break
    left = enumerator.count() - before
    if left.files > 0:
        print("new files:", *sorted(map(str, enumerator.new_files)), sep="\n  ")
    return course, left


def entry(text: str) -> str:
    return f"GM_EXPORT int32_t gm_run(const gm_call *call) {{ (void)call; {text} }}\n"


def cpp(text: str) -> Candidate:
    return candidate(Language.CPP, "main.cpp", text)


def python(deed: str) -> Candidate:
    return candidate(Language.PYTHON, "main.py", f"{PYTHON_PROLOGUE}def run(*tensors):\n    {deed}\n")


def candidate(language: Language, name: str, text: str) -> Candidate:
    return Candidate(
        operator=OPERATOR,
        language=language,
        files={name: text},
        domain=Domain(OPERATOR, "float32"),
        origin=Origin("benchmark"),
    )


def figures(course: Course, left: Census) -> list[Figure]:
    """The rows: what was left behind, and how memory went."""
    count = len(course.deeds)
    others = Counter(status.value for status in course.statuses if status not in CONVICTED)
    fine = left.total == 0 and not others and course.honest in RIGHT
    said = (
        f"mean {1e3 * statistics.mean(course.elapsed_s):.0f} ms each; left: {left}; honest afterwards: {course.honest}"
    )
    if others:
        said += f"; not convicted: {dict(others)}"
    ratio, interval = growth(course.resident_bytes)
    flat = interval[1] <= FLAT
    return [
        Figure(
            f"{count:,} hostile candidates: left behind",
            ISSUE,
            "nothing",
            "processes, files, shared memory segments, descriptors, control groups",
            COMMAND,
            float(left.total),
            verdict=Outcome.MET if fine else Outcome.MISSED,
            note=said,
        ),
        Figure(
            f"{count:,} hostile candidates: resident memory, last tenth over second",
            ISSUE,
            f"flat: at most {FLAT}",
            "x",
            COMMAND,
            round(ratio, 4),
            (round(interval[0], 4), round(interval[1], 4)),
            Outcome.MET if flat else Outcome.MISSED,
            note=f"{statistics.median(course.resident_bytes[-count // TENTHS :]) / (1 << 20):.0f} MiB at the end",
        ),
    ]


def growth(resident: Sequence[int]) -> tuple[float, tuple[float, float]]:
    """Ratio of medians of the last tenth and the second, with its 95 % interval from a bootstrap."""
    tenth = max(1, len(resident) // TENTHS)
    second, last = np.array(resident[tenth : 2 * tenth] or resident), np.array(resident[-tenth:])
    generator = np.random.default_rng(0)

    def medians(sample: np.ndarray) -> np.ndarray:
        return np.median(generator.choice(sample, (RESAMPLES, len(sample))), axis=1)

    low, high = np.quantile(medians(last) / medians(second), (0.025, 0.975))
    return float(np.median(last) / np.median(second)), (float(low), float(high))


if __name__ == "__main__":
    sys.exit(main())
