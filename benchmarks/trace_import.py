"""`python -m benchmarks.trace_import`: importing a trace of 1 GB: how much memory it takes, and how long.

The trace is what torch.profiler recorded of a few decode steps here, again and again with later times and other
numbers, until it is large enough. `./mill import` reads it in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, Outcome, report
from cli.progress import ProgressLine

COMMAND = "python -m benchmarks.trace_import"
ISSUE = 6
SIZE_MB = 1000
LIMIT_GIB = 1.0
LAYERS = 8


@dataclass(frozen=True)
class Imported:
    """How one import went."""

    seconds: float
    peak_gib: float
    calls: int
    covered_share: float


def recorded() -> list[dict[str, Any]]:
    """The operator calls of one decode step, as torch.profiler exports them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    x_TH, weight_H, weight_NK = torch.rand(4, 64), torch.rand(64), torch.rand(64, 64)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(LAYERS):
            torch.nn.functional.rms_norm(x_TH, (64,), weight_H, 1e-6)
            for _ in range(4):
                torch.nn.functional.linear(x_TH, weight_NK)
            torch.nn.functional.silu(x_TH) * x_TH
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("cat") == "cpu_op"]


def repeated(step: Sequence[dict[str, Any]], size_bytes: int) -> Iterator[str]:
    """The text of a trace of about that size: the step over and over, each time later."""
    began_us = min(event["ts"] for event in step)
    length_us = max(event["ts"] + event["dur"] for event in step) - began_us + 1
    yield '{"schemaVersion": 1, "baseTimeNanoseconds": 1790000000000000000, "traceEvents": [\n'
    written = number = 0
    while written < size_bytes:
        later_us = number * length_us - began_us
        events = [
            {
                **event,
                "ts": round(event["ts"] + later_us, 3),
                "args": {**event["args"], "External id": event["args"]["External id"] + number * len(step)},
            }
            for event in step
        ]
        text = (",\n" if number else "") + ",\n".join(map(json.dumps, events))
        written += len(text)
        number += 1
        yield text
    yield "]}\n"


def run_import(path: Path, folder: Path) -> Imported:
    """`./mill import torch`, with its memory measured by the system."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MILL_")},
        "MILL_HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "cli",
        "import",
        "torch",
        str(path),
        "--out",
        str(folder / "profile.json"),
        "--json",
    ]
    began_s = time.monotonic()
    result = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.monotonic() - began_s
    told = json.loads(result.stdout)
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return Imported(seconds, peak_kib / (1 << 20), told["facts"]["operator calls"], told["covered_share"])


def figure(found: Imported, size_mb: int) -> Figure:
    return Figure(
        "import of a torch.profiler trace of 1 GB: memory at most",
        ISSUE,
        f"under {LIMIT_GIB:g}",
        "GiB",
        COMMAND,
        round(found.peak_gib, 3),
        None,
        Outcome.MET if found.peak_gib < LIMIT_GIB and size_mb >= SIZE_MB else Outcome.MISSED,
        note=f"{size_mb} MB, {found.calls:,} operator calls, {found.covered_share:.0%} of their time by operators that "
        f"can be compiled; {found.seconds:.0f} s, {size_mb / found.seconds:.0f} MB/s",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=SIZE_MB, help=f"of the trace; {SIZE_MB}")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    found = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mill-") as name:
        folder = Path(name)
        path = folder / "trace.json"
        with ProgressLine(sys.stderr) as progress, path.open("w") as file:
            for text in repeated(recorded(), found.size_mb * 10**6):
                file.write(text)
                progress.show(f"writing a trace: {file.tell() / 1e6:.0f} of {found.size_mb} MB")
        result = run_import(path, folder)
    return report([figure(result, found.size_mb)], keep=not found.dry_run)


if __name__ == "__main__":
    sys.exit(main())
