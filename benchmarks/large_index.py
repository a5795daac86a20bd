"""`python -m benchmarks.large_index`: what a channel of ten thousand kernels costs a host.

The index in a SeaweedFS names ten thousand tables of one kernel each, and a host takes those of its own operators: it
pulls the metadata, the whole signed index, and the manifests, attestations and objects of its tables. (Of the others
nothing but name and digest is made, because nothing else is looked at.) Every host is a fresh interpreter.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import fleet
from benchmarks.figures import ROOT, Figure, Outcome, report
from benchmarks.fleet import Address
from cli.progress import ProgressLine
from gristmill import records
from harness.significance import student_quantile
from registry.embedded_store import EmbeddedStore, running_or_started
from registry.entry import Edit, Entry
from registry.publication import publish
from tests.registry.world import CANARY, World

COMMAND = "python -m benchmarks.large_index"
ISSUE = 5
KERNELS = 10_000
OPERATORS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding", "softmax", "skinny_linear")
HOSTS = 10
POLLS = 50
COLD_S, WARM_MS, ADDED_MB = 2.0, 50.0, 100.0
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Seen:
    """What one host has measured of itself."""

    imported_s: float
    """Importing the puller and what it needs."""
    cold_s: float
    """The first poll, into an empty cache."""
    warm_ms: tuple[float, ...]
    """Polls without news."""
    added_bytes: int
    """The most resident memory that it had, over an interpreter with nothing imported."""
    imports_bytes: int
    """The part of it that was there before anything was pulled."""
    tables: int
    """That it has taken."""
    news_ms: float = 0.0
    """The poll that brings one new kernel, and so a new index."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=KERNELS, help="in the index; only a full run counts")
    parser.add_argument("--hosts", type=int, default=HOSTS, help="one after another; only a full run counts")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, running_or_started(Path(folder) / "embedded") as store:
        seen = run(Path(folder), store, arguments.kernels, arguments.hosts)
    return report(
        figures(seen), keep=not arguments.dry_run and (arguments.kernels, arguments.hosts) == (KERNELS, HOSTS)
    )


def run(folder: Path, store: EmbeddedStore, kernels: int, hosts: int) -> list[Seen]:
    """Makes the channel, then lets one host after another follow it."""
    at = Address(store.url, store.environ)
    world = fleet.open_registry(folder, at)
    names = fill(world, (folder / "kernel.so").read_bytes(), kernels)
    with ProgressLine(sys.stderr) as progress:
        seen = []
        for number in range(hosts):
            seen.append(watched(folder, at, world, names))
            progress.show(f"{number + 1} of {hosts} hosts, the last in {seen[-1].cold_s:.2f} s")
        return seen


def fill(world: World, kernel: bytes, kernels: int) -> list[str]:
    """A channel with so many tables; returns the names of those that the hosts use."""
    made = [fleet.new_artifact(operator, kernel) for operator in OPERATORS]
    artifacts, files = [artifact for artifact, _ in made], {k: v for _, found in made for k, v in found.items()}
    publish(world.store, world.keyring, CANARY, artifacts, files, fleet.taken)
    others = {f"operator_{n}.float32": records.sha256_hex(str(n).encode()) for n in range(kernels - len(artifacts))}

    def edit(current: Entry | None) -> Edit:
        return Edit({**others, **(current.index.tables if current else {})}, "a large channel")

    world.repository.commit(CANARY, edit)
    return [artifact.table.name for artifact in artifacts]


def watched(folder: Path, at: Address, world: World, names: Sequence[str]) -> Seen:
    """One host: its first poll, those without news, and one that brings a new kernel."""
    channel = [CANARY.fleet, CANARY.model, CANARY.hardware, CANARY.name]
    command = [sys.executable, "-m", "benchmarks.index_host", str(folder), at.url, *channel, str(POLLS), *names]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **at.environ}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        seen = records.parse(Seen, process.stdout.readline())
        artifact, files = fleet.new_artifact(OPERATORS[0], (folder / "kernel.so").read_bytes())
        publish(world.store, world.keyring, CANARY, [artifact], files, fleet.taken)
        news_ms, _ = process.communicate("\n")
        return replace(seen, news_ms=float(news_ms))
    finally:
        process.kill()
        process.wait()


def figures(seen: Sequence[Seen]) -> list[Figure]:
    """The three rows."""
    tables, imported_s = seen[0].tables, statistics.median(one.imported_s for one in seen)
    warm = [ms for one in seen for ms in one.warm_ms]
    news_ms = statistics.median(one.news_ms for one in seen)
    imports_mb = statistics.median(one.imports_bytes for one in seen) / MEGABYTE
    title = f"index of {KERNELS:,} kernels"
    return [
        _row(
            f"{title}: cold pull",
            "s",
            COLD_S,
            [one.cold_s for one in seen],
            f"an empty cache to {tables} verified tables with their objects: metadata, the whole index, and what these "
            f"tables need; importing the puller before that takes {imported_s:.2f} s",
        ),
        _row(
            f"{title}: warm poll",
            "ms",
            WARM_MS,
            [statistics.median(one.warm_ms) for one in seen],
            f"without news, each host's median of {POLLS}; the longest of all {max(warm):.1f} ms; one that brings a "
            f"new kernel, and with it a new index, {news_ms:.0f} ms in the median",
        ),
        _row(
            f"{title}: memory on the host",
            "MB",
            ADDED_MB,
            [one.added_bytes / MEGABYTE for one in seen],
            f"the most that was resident, over a bare interpreter; {imports_mb:.0f} MB of it are imports, boto3 and "
            "tuf foremost",
        ),
    ]


def _row(name: str, unit: str, target: float, samples: Sequence[float], note: str) -> Figure:
    mean = statistics.mean(samples)
    reach = student_quantile(0.025, len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
    verdict = Outcome.MET if mean + reach < target else Outcome.MISSED
    said = f"{len(samples)} hosts, median {statistics.median(samples):.3g}, worst {max(samples):.3g} {unit}; {note}"
    interval = (mean - reach, mean + reach)
    return Figure(name, ISSUE, f"under {target:g}", unit, COMMAND, mean, interval, verdict, note=said)


if __name__ == "__main__":
    sys.exit(main())
