"""`python -m benchmarks.demo_vllm`: the claims of the demo on vLLM, from one whole run of it in a state of its own.

The verdict is the gate's: a gain end to end over several starts, or that there is none worth promoting, with the reason
per operator; hits are those counted in the engine's workers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, Outcome, report

COMMAND = "python -m benchmarks.demo_vllm"
ISSUE = 6
LONGEST_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--result", type=Path, help="a file with what ./mill demo --engine vllm --json printed, instead of a run"
    )
    parser.add_argument("--elapsed-s", type=float, default=0.0, help="how long that run took")
    parser.add_argument("--note", default="", help="what else there is to say of the run")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    if arguments.result:
        facts, elapsed_s = json.loads(arguments.result.read_text()), arguments.elapsed_s
    else:
        with tempfile.TemporaryDirectory(prefix="mill-") as home:
            facts, elapsed_s = _run_demo(home)
    rows = [replace(row, note="; ".join(filter(None, (row.note, arguments.note)))) for row in figures(facts, elapsed_s)]
    return report(rows, keep=not arguments.dry_run)


def figures(facts: dict[str, Any], elapsed_s: float) -> list[Figure]:
    """The rows that one demo proves."""
    honest = bool(facts["outcomes"]) and not facts["promoted"]
    per_operator = "; ".join(f"{one['operator']}: {one['outcome']}" for one in facts["outcomes"])
    hits = sum(sum(start["hits"].values()) for start in facts["trial"]["starts"])
    rows = [
        _figure(
            "demo on vLLM: hits in the engine's workers",
            "loop completes, more than 0",
            "calls",
            hits,
            hits > 0 or honest,
            f"{facts['reason']}; {per_operator}",
        )
    ]
    for concurrency, ratio in facts["ratios"]["tokens_per_s"].items():
        latencies = ", ".join(
            f"{name} {facts['ratios'][measure][concurrency]['middle']:.3f}x"
            for measure, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))
        )
        pairs = sum(
            str(pair["concurrency"]) == concurrency for start in facts["trial"]["starts"] for pair in start["pairs"]
        )
        rows.append(
            _figure(
                f"demo on vLLM: tokens/s, promoted over the engine's own, {concurrency} concurrent requests",
                "at least 1.02, lower end of the interval above 1.0; or nothing released, with the reason per operator",
                "x",
                ratio["middle"],
                (ratio["middle"] >= 1.02 and ratio["low"] > 1.0) or honest,
                f"{'not released' if honest else 'released'}; {latencies}; {pairs} pairs over "
                f"{len(facts['trial']['starts'])} starts",
                (ratio["low"], ratio["high"]),
            )
        )
    name = "demo on vLLM: wall time after installation"
    rows.append(_figure(name, f"under {LONGEST_S:.0f}", "s", elapsed_s, 0 < elapsed_s < LONGEST_S, ""))
    return rows


def _figure(
    name: str,
    target: str,
    unit: str,
    measured: float,
    met: bool,
    note: str,
    interval: tuple[float, float] | None = None,
) -> Figure:
    verdict = Outcome.MET if met else Outcome.MISSED
    ends = (round(interval[0], 3), round(interval[1], 3)) if interval else None
    return Figure(name, ISSUE, target, unit, COMMAND, round(measured, 3), ends, verdict, note=note)


def _run_demo(home: str) -> tuple[dict[str, Any], float]:
    began = time.monotonic()
    command = [str(ROOT / "mill"), "demo", "--engine", "vllm", "--json", "--fresh"]
    finished = subprocess.run(
        command, env={**os.environ, "MILL_HOME": home}, stdout=subprocess.PIPE, text=True, check=True
    )
    facts: dict[str, Any] = json.loads(finished.stdout)
    return facts, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
