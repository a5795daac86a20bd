"""`python -m benchmarks.sampling_overhead`: what sampling costs an engine, by turns in one process.

transformers: blocks of decode steps from the same state, with and without the sampler. vLLM: replays of the same
requests, with the kill switch's word `off`, which ends sampling, and without it. Neither runs a kernel of ours. The
figure is the median over pairs of processor time with sampling over processor time without, minus 1: of the process
that runs the operators, on one thread, so that a busy host widens the interval and does not move it.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.figures import Figure, Outcome, report
from gristmill import durable_file
from gristmill.adapters.transformers import attach
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.kill_switch import FILE_VARIABLE
from gristmill.sampler import Sampler
from gristmill.serving.batcher import Batcher, prompt_tokens
from gristmill.serving.batcher import Sequence as Served
from gristmill.serving.model import ModelShape, build_model
from gristmill.serving.paired import median_interval
from gristmill.traces import Request
from tasks.engine_site import serving_site, vllm_python
from tasks.serving_client import ServingProcess

COMMAND = "python -m benchmarks.sampling_overhead"
ISSUE = 6
LIMIT, LIMIT_HIGH = 0.01, 0.02
ROWS = 8
PROMPT_TOKENS, BLOCK_STEPS = 32, 2
REPLAYED_TOKENS = 8
START_TIMEOUT_S = 240.0
SAMPLED, SILENT = "sampled", "silent"
Measure = Callable[[str], float]
"""Processor seconds of one arm."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("transformers", "vllm", "both"), default="both")
    parser.add_argument("--pairs", type=int, default=300, help="per engine")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    rows = []
    try:
        if arguments.engine != "vllm":
            rows.append(figure("transformers", transformers_overheads(arguments.dtype, arguments.pairs)))
        if arguments.engine != "transformers":
            with tempfile.TemporaryDirectory(prefix="mill-") as folder:
                rows.append(figure("vLLM", vllm_overheads(Path(folder), arguments.dtype, arguments.pairs)))
    except GristmillError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return report(rows, keep=not arguments.dry_run)


def figure(engine: str, overheads: Sequence[float]) -> Figure:
    """The row of one engine."""
    middle, low, high = median_interval(overheads, 1)
    met = middle < LIMIT and high < LIMIT_HIGH
    return Figure(
        name=f"sampling overhead in {engine}, paired",
        issue=ISSUE,
        target="under 1, upper end of the interval under 2",
        unit="%",
        command=COMMAND,
        measured=round(100 * middle, 3),
        interval=(round(100 * low, 3), round(100 * high, 3)),
        verdict=Outcome.MET if met else Outcome.MISSED,
        note=f"{len(overheads)} pairs, mean {100 * statistics.fmean(overheads):.2f} %",
    )


def paired(measure: Measure, pairs: int, name: str, seed: int = 1) -> list[float]:
    """What sampling adds, by pair; the first pair warms both arms up."""
    chooser = random.Random(seed)
    overheads = []
    for number in range(-1, pairs):
        order = [SAMPLED, SILENT]
        chooser.shuffle(order)
        seconds = {arm: measure(arm) for arm in order}
        if number >= 0:
            overheads.append(seconds[SAMPLED] / seconds[SILENT] - 1)
            if number % 10 == 9:
                print(f"{name}: {number + 1} of {pairs} pairs, {100 * statistics.median(overheads):+.2f} %", flush=True)
    return overheads


def transformers_overheads(dtype: str, pairs: int) -> list[float]:
    """The reference engine's model, decoding a batch."""
    torch.set_num_threads(1)
    shape = ModelShape()
    model = build_model(shape, dtype)
    attachment = attach(model, Dispatcher(environ={}))
    batcher = Batcher(model, attachment.softmax)
    for index in range(ROWS):
        prompt = prompt_tokens(1, index, PROMPT_TOKENS, shape.vocabulary)
        batcher.join(Served(index, prompt, 1 << 20))
    sampler, state = Sampler(), batcher.state()

    def block(arm: str) -> float:
        batcher.restore(state)
        attachment.sampler = sampler if arm == SAMPLED else None
        for step in range(-1, BLOCK_STEPS):  # the first looks up what the other arm has left behind
            if step == 0:
                start_s = time.process_time()
            if arm == SAMPLED:
                sampler.boundary()
            batcher.trial_step()
        return time.process_time() - start_s

    return paired(block, pairs, "transformers")


def vllm_overheads(folder: Path, dtype: str, pairs: int) -> list[float]:
    """A real vLLM, serving a batch to its end; its worker follows a channel on which there is nothing.

    Raises:
        ServingError: no environment with vLLM is named, or it does not start.
    """
    kill_file, root_file, store = folder / "kill", folder / "root.json", folder / "store"
    store.mkdir()
    durable_file.write(kill_file, b"")
    durable_file.write(root_file, b"{}")  # no channel is trusted by it: polls fail, and that is all
    site = serving_site(folder / "site")
    flags = {"cache-dir": folder / "host", "root-file": root_file, "store": f"file://{store}", "dtype": dtype}
    environ = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", FILE_VARIABLE: str(kill_file)}
    environ["VLLM_CPU_OMP_THREADS_BIND"] = str(min(os.sched_getaffinity(0)))
    command = [str(vllm_python()), "-m", "gristmill.serving.vllm_engine"]
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    with ServingProcess(arguments, environ, folder / "vllm.log", command=command, cwd=site) as process:
        process.wait_ready(START_TIMEOUT_S)
        return paired(functools.partial(_replay_cpu_s, process, kill_file), pairs, "vLLM")


def _replay_cpu_s(process: ServingProcess, kill_file: Path, arm: str) -> float:
    durable_file.write(kill_file, b"" if arm == SAMPLED else b"off")
    requests = [Request(0.0, PROMPT_TOKENS, REPLAYED_TOKENS)] * ROWS
    before_ns = process.status()["cpu_ns"]
    process.replay(requests, ROWS, 1)
    return float(process.status()["cpu_ns"] - before_ns) / 1e9


if __name__ == "__main__":
    sys.exit(main())
