"""`python -m benchmarks.freshness`: from the start of a promotion until a host's call is served by its kernel.

The registry is in a SeaweedFS, the host a process of its own that polls every second; promotions come at random
moments.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import fleet
from benchmarks.figures import Figure, Outcome, report
from benchmarks.fleet import Address
from benchmarks.quantiles import quantile_interval
from cli.progress import ProgressLine
from registry.embedded_store import EmbeddedStore, running_or_started
from registry.publication import publish
from tests.registry.world import CANARY

COMMAND = "python -m benchmarks.freshness"
ISSUE = 5
PROMOTIONS = 120
POLL_S = 1.0
TARGET_S = 3.0
SHARE = 0.95


@dataclass(frozen=True)
class Passage:
    """One promotion's way to the host."""

    published_s: float
    """Until it was confirmed to its promoter."""
    served_s: float
    """Until a call was served by its kernel."""
    right: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--promotions", type=int, default=PROMOTIONS, help="one by one; only a full run counts")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, running_or_started(Path(folder) / "embedded") as store:
        row = figure(run(Path(folder), store, arguments.promotions, random.Random(arguments.seed)))
    return report([row], keep=not arguments.dry_run and arguments.promotions >= PROMOTIONS)


def run(folder: Path, store: EmbeddedStore, promotions: int, chance: random.Random) -> list[Passage]:
    """Promotes and waits, so many times."""
    at = Address(store.url, store.environ)
    world = fleet.open_registry(folder, at)
    kernel = (folder / "kernel.so").read_bytes()
    host = fleet.start(fleet.serve, folder, at, POLL_S)
    passages = []
    try:
        with ProgressLine(sys.stderr) as progress:
            for number in range(promotions):
                time.sleep(chance.uniform(0, POLL_S))
                artifact, files = fleet.new_artifact(fleet.OPERATOR, kernel)
                began = time.monotonic()
                done = publish(world.store, world.keyring, CANARY, [artifact], files, fleet.taken)
                published_s = time.monotonic() - began
                answer = fleet.ask(host.line, done.number)
                if answer is None or answer.generation < done.number:
                    raise RuntimeError(f"promotion {done.number} did not reach the host: {answer}")
                passages.append(Passage(published_s, answer.at_s - began, answer.served and answer.right))
                progress.show(f"{number + 1} of {promotions}, the last in {passages[-1].served_s:.2f} s")
    finally:
        host.kill()
    return passages


def figure(passages: Sequence[Passage]) -> Figure:
    """The row."""
    times = sorted(passage.served_s for passage in passages)
    low, high = quantile_interval(times, SHARE)
    wrong = sum(not passage.right for passage in passages)
    published = statistics.median(passage.published_s for passage in passages)
    note = (
        f"{len(times)} promotions at random moments, {wrong} served wrongly; median {statistics.median(times):.2f} s, "
        f"mean {statistics.mean(times):.2f} s, longest {times[-1]:.2f} s; {published:.2f} s of it publishing, in the "
        "median"
    )
    return Figure(
        f"promote until a host serves it, poll {POLL_S:.0f} s: p95",
        ISSUE,
        f"under {TARGET_S:.0f}",
        "s",
        COMMAND,
        times[min(len(times) - 1, int(SHARE * len(times)))],
        (low, high),
        Outcome.MET if high < TARGET_S and not wrong else Outcome.MISSED,
        note=note,
    )


if __name__ == "__main__":
    sys.exit(main())
