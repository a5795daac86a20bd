"""`python -m benchmarks.profile_fold`: a day's capture of a fleet: how long it takes, how much memory, how large it is.

A spool as a hundred hosts leave it, written by the code of the hosts: minutes of decoding, prompts between, all layers
of a model of 8 billion parameters, one in 17 calls timed. `./mill capture` folds it in a process of its own, and what
it keeps must hold every call.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from unittest import mock

from benchmarks.figures import ROOT, Figure, Outcome, report
from cli.progress import ProgressLine
from gristmill import spool
from gristmill.directory_store import DirectoryStore
from gristmill.hardware import local_cpu
from gristmill.sampler import DEFAULT_PERIOD, Sample, Sampler, Window
from gristmill.sequence import Edge, StepTimes
from gristmill.window_clock import WindowClock
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.profile import TrafficProfile, parse
from kernels.roofline import cached_peaks

COMMAND = "python -m benchmarks.profile_fold"
ISSUE = 6
HOSTS, FLUSHES = 100, 10
SAMPLED_CALLS = 10_000_000
"""Timed ones; the fleet made `DEFAULT_PERIOD` times as many."""
REQUESTS = 60
"""That finish per host and flush."""
LIMIT_S, LIMIT_GIB, LIMIT_MIB = 60.0, 1.0, 1.0
FLEET, MODEL = "hundred", "llama-8b"
MINUTE_NS = 60 * 10**9
LAYERS = 32
STEP: tuple[tuple[str, dict[str, int]], ...] = (
    ("rms_norm", {"hidden": 4096}),
    ("fused_add_rms_norm", {"hidden": 4096}),
    ("silu_and_mul", {"intermediate": 14336}),
    ("skinny_linear", {"in_features": 4096, "out_features": 6144}),
    ("skinny_linear", {"in_features": 4096, "out_features": 4096}),
    ("skinny_linear", {"in_features": 4096, "out_features": 28672}),
    ("skinny_linear", {"in_features": 14336, "out_features": 4096}),
)
"""What a layer calls, each once a step."""


WEIGH = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss)
os._exit(sys.stdout.flush() or os.waitstatus_to_exitcode(status) != 0)
"""
"""Runs a command and tells its most memory in KiB. A small process: a child begins with its parent's as its most."""


@dataclass
class Recorded:
    """In a sampler's place: what one host counted, minute by minute."""

    rng: random.Random
    calls_per_window: int
    """Timed."""
    timed: int = 0

    def flush(self) -> Window:
        steps = max(1, self.calls_per_window * DEFAULT_PERIOD // (LAYERS * len(STEP)))
        load = self.rng.lognormvariate(4.0, 0.5)
        tokens = Counter(_tokens(self.rng, load) for _ in range(steps))
        samples = []
        for operator, shape in STEP:
            for count, times in tokens.items():
                one = _workload(operator, count, tuple(shape.items()))
                timed = round(times * LAYERS / DEFAULT_PERIOD)
                duration_ns = timed * (2000 + 40 * count)
                self.timed += timed
                samples.append(
                    Sample(
                        operator, "bfloat16", one.axes, one.inputs, times * LAYERS, timed, duration_ns, DEFAULT_PERIOD
                    )
                )
        edge = Edge("rms_norm", {"hidden": 4096}, 0, "skinny_linear", STEP[3][1], 0, "bfloat16", 1, steps)
        return Window(tuple(samples), 0, (edge,), StepTimes(1, LAYERS * len(STEP), 80_000_000, 60_000_000))


def _tokens(rng: random.Random, load: float) -> int:
    """Of one step: sequences that decode, and in one of five a chunk of a prompt."""
    decodes = min(256, max(1, round(rng.gauss(load, load / 6))))
    return decodes + (min(8192 - decodes, round(rng.lognormvariate(6.5, 1.0))) if rng.random() < 0.2 else 0)


@functools.lru_cache(maxsize=1 << 16)
def _workload(operator: str, tokens: int, shape: tuple[tuple[str, int], ...]) -> Workload:
    definition = catalogue.operator(operator)
    rows = "tokens" if "tokens" in definition.axes else "rows"
    return inputs.workload(definition, "bfloat16", **{rows: tokens}, **dict(shape))


@dataclass(frozen=True)
class Spooled:
    """What lies in the store."""

    objects: int
    size_bytes: int
    calls: int
    timed_calls: int
    requests: int


def write_spool(folder: Path, hosts: int, flushes: int, sampled_calls: int, progress: ProgressLine) -> Spooled:
    """The spool of so many hosts, up to now."""
    store = DirectoryStore(folder / "store")
    identity = spool.Identity(FLEET, MODEL, local_cpu().key, {"torch": "2.13.0", "vllm": "0.32.0"})
    began_ns = time.time_ns() - (flushes + 1) * MINUTE_NS
    objects = calls = timed = requests = 0
    for host in range(hosts):
        progress.show(f"spool of host {host + 1} of {hosts}")
        rng = random.Random(host)
        recorded = Recorded(rng, sampled_calls // hosts // flushes)
        now_ns = began_ns + rng.randrange(MINUTE_NS)
        clock = functools.partial(WindowClock, lambda: now_ns, lambda: now_ns)  # noqa: B023 - called within the turn
        with (
            mock.patch.object(spool, "host_hash", lambda name=f"{host:012x}": name),
            mock.patch.object(spool, "WindowClock", clock),
        ):
            writer = spool.Spool(store, identity, cast(Sampler, recorded), folder / "waiting")
        for _ in range(flushes):
            now_ns += MINUTE_NS
            for _ in range(REQUESTS):
                length = round(rng.lognormvariate(6.5, 1.0)) + 1
                writer.add_request(length, round(rng.lognormvariate(5.0, 0.8)) + 1, now_ns - rng.randrange(MINUTE_NS))
            flushed = writer.flush()
            objects += len(flushed.keys)
            calls += flushed.calls
            requests += flushed.requests
        timed += recorded.timed
    size_bytes = sum(path.stat().st_size for path in (folder / "store").rglob("*.parquet"))
    return Spooled(objects, size_bytes, calls, timed, requests)


@dataclass(frozen=True)
class Folded:
    """How the capture went."""

    seconds: float
    peak_gib: float
    size_bytes: int
    profile: TrafficProfile


def capture(folder: Path) -> Folded:
    """`./mill capture`, with its memory measured by the system.

    Raises:
        CalledProcessError: it failed.
    """
    cached_peaks(folder / "home" / "peaks.json")  # of this machine: measured once, not once per capture
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MILL_", "PREFECT_"))},
        "MILL_HOME": str(folder / "home"),
        "MILL_STORE": f"file://{folder / 'store'}",
        "MILL_FLEET": FLEET,
        "MILL_MODEL": MODEL,
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "cli", "capture", "--json"]
    began_s = time.monotonic()
    weighed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", WEIGH, *command], env=environ, stdout=subprocess.PIPE, check=True
    )
    seconds = time.monotonic() - began_s
    peak_kib = int(weighed.stdout)
    (kept,) = (folder / "store" / "profiles").rglob("*.json")
    content = kept.read_bytes()
    return Folded(seconds, peak_kib / (1 << 20), len(content), parse(content, kept.name))


def figures(spooled: Spooled, folded: Folded) -> list[Figure]:
    """
    Raises:
        AssertionError: the profile does not hold what the hosts counted.
    """
    profile = folded.profile
    assert sum(w.calls for w in profile.workloads) == spooled.calls
    assert sum(sum(stream.calls) for stream in profile.sketch.streams if stream.dtype) == spooled.calls
    assert profile.requests.count == spooled.requests
    note = (
        f"{spooled.timed_calls:,} timed calls of {spooled.calls:,}, {spooled.requests:,} requests, {HOSTS} hosts, "
        f"{spooled.objects:,} objects of {spooled.size_bytes / 1e6:.0f} MB; the whole of ./mill capture; all calls are "
        f"in the profile, of {len(profile.workloads):,} workloads"
    )

    def row(what: str, measured: float, limit: float, unit: str) -> Figure:
        return Figure(
            f"profile of 10 million sampled calls from 100 hosts: {what}",
            ISSUE,
            f"under {limit:g}",
            unit,
            COMMAND,
            round(measured, 3),
            verdict=Outcome.MET if measured < limit else Outcome.MISSED,
            note=note,
        )

    return [
        row("time", folded.seconds, LIMIT_S, "s"),
        row("memory at most", folded.peak_gib, LIMIT_GIB, "GiB"),
        row("size", folded.size_bytes / (1 << 20), LIMIT_MIB, "MiB"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=HOSTS, help=f"{HOSTS} count")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    found = parser.parse_args(arguments)
    calls = SAMPLED_CALLS * found.hosts // HOSTS
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, ProgressLine(sys.stderr) as progress:
        spooled = write_spool(Path(folder), found.hosts, FLUSHES, calls, progress)
        progress.show("capturing")
        folded = capture(Path(folder))
    return report(figures(spooled, folded), keep=not found.dry_run and found.hosts == HOSTS)


if __name__ == "__main__":
    sys.exit(main())
