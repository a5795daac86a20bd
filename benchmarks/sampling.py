"""`python -m benchmarks.sampling`: what sampling adds to a call, and what torch.profiler would add to a step.

Calls go through a hook that no kernel serves, whose engine does nothing, in short blocks of a hundred calls, a step
each: with everything that production turns on (every call counted, one in 17 timed, one step in 61 traced at most),
and with no sampler. Blocks of one round follow each other in random order; each difference is of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.dispatch import BLOCK_CALLS, Added, added, compare
from benchmarks.figures import Figure, Outcome, report
from cli.progress import ProgressLine
from gristmill.dispatch import Dispatcher
from gristmill.hook import Hook, Instruments
from gristmill.sampler import DEFAULT_PERIOD, DEFAULT_TRACE_PERIOD, Sampler

COMMAND = "python -m benchmarks.sampling"
ISSUE = 6
LIMIT_US = 0.2
ROUNDS = 3000
SESSIONS = 20
SAMPLED, SILENT = "sampled", "silent"


class Engine:
    """One operator that does nothing, with or without a sampler."""

    def __init__(self, sampler: Sampler | None) -> None:
        self.sampler = sampler
        dispatcher = Dispatcher(environ={})
        site = dispatcher.site("rms_norm", torch.float32, {"hidden": 32}, (1e-6,), self._nothing)
        self._hook = Hook(Instruments(dispatcher, sampler), site)
        self._inputs = (torch.rand(4, 32), torch.rand(32))
        self._output = torch.rand(4, 32)

    def _nothing(self, *_: object) -> tuple[Tensor, ...]:
        return (self._output,)

    def calls(self, count: int) -> None:
        call, inputs = self._hook.call, self._inputs
        for _ in range(count):
            call(*inputs)

    def boundary(self) -> None:
        if self.sampler is not None:
            self.sampler.boundary()


def measure(rounds: int, progress: ProgressLine) -> Added:
    """What sampling adds to a call.

    Raises:
        AssertionError: not every call was counted.
    """
    sampled, silent = Engine(Sampler()), Engine(None)
    numbers = itertools.count(1)
    with torch.no_grad():
        blocks = compare(
            {SAMPLED: sampled.calls, SILENT: silent.calls},
            rounds,
            sampled.boundary,
            lambda: progress.show(f"sampling: round {next(numbers)} of {rounds}"),
        )
    assert sampled.sampler is not None
    (sample,) = sampled.sampler.flush().samples
    assert sample.calls >= rounds * BLOCK_CALLS
    return added(blocks, SAMPLED, SILENT)


def profiled_ms(sessions: int) -> float:
    """What a step takes longer with torch.profiler around it: the median over sessions, the first one left out."""
    from torch.profiler import ProfilerActivity, profile

    x_TH, weight_H = torch.rand(4, 32), torch.rand(32)

    def step() -> None:
        for _ in range(BLOCK_CALLS):
            torch.rms_norm(x_TH, (32,), weight_H, 1e-6)

    longer_ms = []
    with torch.no_grad():
        for _ in range(sessions + 1):
            start_ns = time.perf_counter_ns()
            step()
            plain_ns = time.perf_counter_ns() - start_ns
            start_ns = time.perf_counter_ns()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=False):
                step()
            longer_ms.append((time.perf_counter_ns() - start_ns - plain_ns) / 1e6)
    return statistics.median(longer_ms[1:])


def figure(found: Added, profiler_ms: float) -> Figure:
    ratio = profiler_ms * 1000 / BLOCK_CALLS / max(found.median_us, 1e-3)
    return Figure(
        "sampling: added to a call",
        ISSUE,
        f"at most {LIMIT_US}, median",
        "us",
        COMMAND,
        round(found.median_us, 3),
        (round(found.low_us, 3), round(found.high_us, 3)),
        Outcome.MET if found.high_us <= LIMIT_US else Outcome.MISSED,
        note=f"every call counted, one in {DEFAULT_PERIOD} timed, one step in {DEFAULT_TRACE_PERIOD} traced at most; "
        f"mean {found.mean_us:.3f}. torch.profiler around a step of {BLOCK_CALLS} calls takes {profiler_ms:.1f} ms "
        f"more, {ratio:.0f} times as much per call",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"blocks of {BLOCK_CALLS} calls per way; {ROUNDS}")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    found = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with ProgressLine(sys.stderr) as progress:
        result = measure(found.rounds, progress)
        progress.show("torch.profiler around steps")
        profiler_ms = profiled_ms(SESSIONS)
    return report([figure(result, profiler_ms)], keep=not found.dry_run)


if __name__ == "__main__":
    sys.exit(main())
