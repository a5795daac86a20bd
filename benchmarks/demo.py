"""`python -m benchmarks.demo`: the demo's claims, from one whole run of it in a state folder of its own.

Time and memory are of the demo process and all it starts, after installation. The A/B's interval is the demo's own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.figures import ROOT, Figure, Outcome, record
from cli.memory import tree_bytes

COMMAND = "python -m benchmarks.demo"
ISSUE = 2
GIB = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as home:
        report, elapsed_s, memory_bytes = _run_demo(home)
    rows = figures(report, elapsed_s, memory_bytes)
    for figure in rows:
        print(f"{figure.name}: target {figure.target}, measured {figure.measured} {figure.unit}", figure.interval or "")
        print(f"  {figure.verdict.value} {figure.note}")
        if not arguments.dry_run:
            record(figure)
    return 0


def figures(report: dict[str, Any], elapsed_s: float, memory_bytes: int) -> list[Figure]:
    """The rows that one demo proves."""
    rows = [
        _figure("demo: wall time after installation", "under 360", "s", elapsed_s, elapsed_s < 360),
        _figure("demo: memory of all its processes", "under 6", "GiB", memory_bytes / GIB, memory_bytes < 6 * GIB),
    ]
    for run in report["concurrency"]:
        rows.append(
            _figure(
                f"decode tokens/s, promoted over the engine's own kernels, {run['concurrency']} concurrent requests",
                "at least 1.5, lower end of the interval above 1.35",
                "x",
                run["ratio"],
                run["ratio"] >= 1.5 and run["ratio_low"] > 1.35,
                (run["ratio_low"], run["ratio_high"]),
                note=f"{run['off_tokens_s']:.1f} to {run['on_tokens_s']:.1f} tokens/s, {run['pairs']} pairs",
            )
        )
    worst = min(report["kernels"], key=lambda kernel: kernel["ratio_low"])
    rows.append(
        _figure(
            "promoted ranges: the worst one's lower bound over the engine's own kernel",
            "at least 0.98",
            "x",
            worst["ratio_low"],
            worst["ratio_low"] >= 0.98,
            note=f"{len(report['kernels'])} ranges; the worst is {worst['operator']} {worst['range']}",
        )
    )
    savings = [row["saving"] for row in report["traffic"]]
    budgets = [row["budget_s"] for row in report["searches"]]
    follows = savings == sorted(savings, reverse=True) and budgets == sorted(budgets, reverse=True)
    rows.append(
        _figure(
            "operators ranked by time share x headroom, budget in that order",
            "1 (yes)",
            "",
            float(follows),
            follows,
            note=", ".join(f"{row['operator']} {row['saving']:.1%}" for row in report["traffic"]),
        )
    )
    return rows


def _figure(
    name: str,
    target: str,
    unit: str,
    measured: float,
    met: bool,
    interval: tuple[float, float] | None = None,
    note: str = "",
) -> Figure:
    verdict = Outcome.MET if met else Outcome.MISSED
    rounded = (round(interval[0], 3), round(interval[1], 3)) if interval else None
    return Figure(name, ISSUE, target, unit, COMMAND, round(measured, 3), rounded, verdict, note=note)


def _run_demo(home: str) -> tuple[dict[str, Any], float, int]:
    """The demo's report, its wall time, and the peak of its processes' memory."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "demo", "--json"],
        cwd=ROOT,
        env={**os.environ, "MILL_HOME": home, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    peak_bytes = 0
    with process:
        while True:
            try:
                output, _ = process.communicate(timeout=2)
                break
            except subprocess.TimeoutExpired:
                peak_bytes = max(peak_bytes, tree_bytes(process.pid))
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}")
    return json.loads(output), time.monotonic() - began, peak_bytes


if __name__ == "__main__":
    sys.exit(main())
