"""`./mill test`: the repository's tests, by pytest.

The whole suite goes in two passes: first what may run side by side, a worker per core, then one at a time what
measures, or takes cores and memory from others. A selection is one pass, as pytest itself would do it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from cli.home import ROOT

ALONE = (
    "tests/harness",
    "tests/evil",
    "tests/honest",
    "tests/agents/test_fused_judged.py",
    "tests/agents/test_llm_agent_judged.py",
    "tests/gristmill/serving/test_paired.py",
)
"""What is tested there is time, or who goes before whom, or what a program without bounds takes from others."""
CALCULATED = (
    "tests/harness/test_comparer_mutants.py",
    "tests/harness/test_sharpness.py",
    "tests/harness/test_yardstick.py",
)
"""What of these takes long and measures nothing."""
MOST_WORKERS = 8
"""Each loads torch, Prefect and MLflow: most of a gigabyte."""
SIDE_BY_SIDE = ("--dist", "loadfile", "--no-loadscope-reorder")
"""Tests of a file share what it sets up, and some build on the one before them."""
SELECTS_NOTHING = re.compile(r"-[qv]+|-[pr]\S+|--(durations|tb|color)=\S+")
GRACE_S = 30.0
"""For what is to be taken down after Ctrl-C."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mill test [PYTEST ARGUMENTS]"
    parser.epilog = (
        "Without a selection a worker per core takes what may run side by side, and then what measures runs alone. "
        "Examples: ./mill test tests/harness   ./mill test -k rollback -x"
    )
    parser.set_defaults(rest=())


def run(arguments: argparse.Namespace) -> int:
    """Makes every pass, also after one that failed; the exit code is that of the first that did."""
    failed = 0
    for selection in passes(arguments.rest, min(len(os.sched_getaffinity(0)), MOST_WORKERS)):
        print("running pytest", *selection, "in the checkout", flush=True)
        code = _ended(subprocess.Popen([sys.executable, "-m", "pytest", *selection], cwd=ROOT))
        failed = failed or code
    return failed


def passes(rest: Sequence[str], workers: int) -> list[tuple[str, ...]]:
    """The arguments of one pytest after another."""
    if workers < 2 or not all(map(SELECTS_NOTHING.fullmatch, rest)):
        return [tuple(rest)]
    alone = tuple(_alone())
    ignored = (f"--ignore={path}" for path in alone)
    return [(*rest, "-n", str(workers), *SIDE_BY_SIDE, *ignored), (*rest, *alone)]


def _alone() -> Iterator[str]:
    for path in ALONE:
        if any(file.startswith(f"{path}/") for file in CALCULATED):
            files = (str(file.relative_to(ROOT)) for file in sorted((ROOT / path).rglob("test_*.py")))
            yield from (file for file in files if file not in CALCULATED)
        else:
            yield path


def _ended(pytest: subprocess.Popen[bytes]) -> int:
    """Its exit code. A terminal interrupts it as well, and it takes down what its tests have started: that is waited
    for, before the interruption goes on. Who interrupts this process alone is passed on, later.
    """
    try:
        return pytest.wait()
    except KeyboardInterrupt:
        try:
            pytest.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pytest.send_signal(signal.SIGINT)
            pytest.wait()
        raise
