"""`./mill judge --calibrate`: how far this host's timings can be trusted, measured and kept in the judge's folder."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from cli import interrupt
from cli.amount import count
from cli.errors import JudgeArgumentsError
from cli.progress import ProgressLine
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment

if TYPE_CHECKING:
    from harness.calibration import Calibration

TRIALS = 60
BUDGET_S = 1.0
"""Of measuring, for each pair of identical candidates."""


JUDGING: dict[str, object] = {
    "file": None,
    "operator": None,
    "workloads": None,
    "seed": None,
    "setup": False,
    "range": [],
    "layout": "inner_contiguous",
    "dtype": "float32",
    "policy": "search",
    "baseline": "eager",
}
"""What says how a file is judged, and what it is when it is not given."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="judge no file, but this host: its noise, how often identical candidates are called faster, its peaks",
    )
    parser.add_argument("--trials", type=count, help=f"pairs of identical candidates to calibrate with ({TRIALS})")


def asked_for(arguments: argparse.Namespace) -> bool:
    """Whether it is the host that is to be judged.

    Raises:
        JudgeArgumentsError: that is not clear.
    """
    if arguments.calibrate:
        given = [name for name in JUDGING if getattr(arguments, name) != JUDGING[name]]
        if given:
            raise JudgeArgumentsError(
                f"judge --calibrate takes no {given[0]}: it judges this host with kernels it knows"
            )
        return True
    if arguments.trials is not None:
        raise JudgeArgumentsError("judge --trials N goes with --calibrate")
    if arguments.file is None or arguments.operator is None:
        lacking = "a file" if arguments.file is None else "--operator NAME (./mill operators lists them)"
        raise JudgeArgumentsError(f"judge needs {lacking}, as in: ./mill judge kernel.cpp --operator rms_norm")
    return False


def run(arguments: argparse.Namespace) -> int:
    """Nothing is kept of an interrupted calibration."""
    from harness import calibration, policy
    from harness.judge import Judge

    settings = from_environment()
    chosen = policy.proof(BUDGET_S)
    with ProgressLine(sys.stderr) as progress:

        def report(text: str) -> None:
            interrupt.check()
            progress.show(text)

        report("measuring what this machine can do")
        peaks = calibration.measure_peaks(settings.peaks_path)
        with Judge(settings.judge_dir, chosen, peaks) as judge:
            found = calibration.calibrate(judge, arguments.trials or TRIALS, chosen.min_gain, report)
    calibration.keep(settings.judge_dir, found)
    print(json.dumps(records.encode(found)) if arguments.json else describe(found))
    return 0


def describe(found: Calibration) -> str:
    """What a person reads."""
    rows = [
        [
            noise.label,
            f"{noise.call_ns / 1e3:.1f} us",
            f"{noise.variation:.1%}",
            f"{noise.dependence:.1f}",
            f"{noise.spikes:.1%}",
            f"{noise.drift:.1%}",
            f"{noise.offset:+.1%}",
            *(f"{gain:.1%}" for gain in noise.told.values()),
        ]
        for noise in found.workloads
    ]
    times = [f"told in {seconds} s" for seconds in found.workloads[0].told]
    head = ["workload", "call", "pairs vary", "dependence", "spikes", "drift", "offset", *times]
    priority = (
        "granted" if found.real_time else "not granted: busy neighbours show (run as root, or grant CAP_SYS_NICE)"
    )
    return "\n".join(
        [
            compact_table(rows, head),
            f"identical candidates called faster: {found.called_faster} of {found.trials} "
            f"(at most {found.called_faster_at_most:.1%} with 95 % confidence)",
            f"real-time priority while measuring: {priority}",
        ]
    )
