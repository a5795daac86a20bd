"""`python -m benchmarks.promoters`: promoters, each a process, publish to one channel at once, and nothing may be lost.

Each promotes tables of its own, one by one, as fast as it can. Afterwards all of them must be in the channel's index,
each state must have one number and one predecessor, and a host that starts from nothing must get every table.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, Outcome, report
from cli.progress import ProgressLine
from cli.table import compact_table
from gristmill.kernel_table import Artifact
from gristmill.store import open_store
from registry.embedded_store import running_or_started
from registry.promotion import Decision
from registry.publication import publish
from registry.rollback import history
from tests.registry.world import CANARY, World, make_artifact

COMMAND = "python -m benchmarks.promoters"
ISSUE = 5
PROMOTERS, PROMOTIONS = 8, 25
STORES = ("directory", "seaweedfs")


@dataclass(frozen=True)
class Promotion:
    """One that was confirmed to its promoter."""

    table: str
    number: int
    tries: int
    """How often the gate was asked: once, and again after each conflict."""
    elapsed_s: float


@dataclass(frozen=True)
class Course:
    """What became of all of them."""

    store: str
    promised: int
    confirmed: tuple[Promotion, ...]
    present: int
    """Of the confirmed ones, in the index at the end, in the state that they were told, and on a host."""
    elapsed_s: float

    def row(self) -> list[object]:
        times = [1e3 * one.elapsed_s for one in self.confirmed] or [0.0]
        return [
            self.store,
            f"{self.present} of {self.promised}",
            len(self.confirmed) / self.elapsed_s,
            statistics.mean([one.tries for one in self.confirmed] or [0]),
            max([one.tries for one in self.confirmed] or [0]),
            statistics.median(times),
            statistics.mean(times),
            max(times),
        ]


HEADERS = ["store", "present", "per s", "mean tries", "most", "median ms", "mean ms", "most ms"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--promoters", type=int, default=PROMOTERS, help="processes; only a full run counts")
    parser.add_argument("--promotions", type=int, default=PROMOTIONS, help="of each; only a full run counts")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    courses = []
    for name in STORES:
        with tempfile.TemporaryDirectory(prefix="mill-") as folder, opened(name, Path(folder)) as (url, environ):
            courses.append(run(name, Path(folder), url, environ, arguments.promoters, arguments.promotions))
    print(compact_table([course.row() for course in courses], HEADERS))
    return report(
        [figure(course) for course in courses],
        keep=not arguments.dry_run and (arguments.promoters, arguments.promotions) == (PROMOTERS, PROMOTIONS),
    )


@contextlib.contextmanager
def opened(name: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Address and credentials of a fresh store."""
    if name == "directory":
        yield f"file://{folder / 'store'}", {}
        return
    with running_or_started(folder / "embedded") as embedded:
        yield embedded.url, embedded.environ


def run(name: str, folder: Path, url: str, environ: Mapping[str, str], promoters: int, promotions: int) -> Course:
    """Lets them promote, then counts what is there."""
    world = World(folder, open_store(url, environ))
    world.repository.initialise()
    confirmed: list[Promotion] = []
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(promoters, spawning) as pool, ProgressLine(sys.stderr) as progress:
        for ready in [pool.submit(os.getpid) for _ in range(promoters)]:
            ready.result()
        began = time.monotonic()
        work = [pool.submit(promote, folder, url, dict(environ), one, promotions) for one in range(promoters)]
        for done in as_completed(work):
            confirmed += done.result()
            progress.show(f"{name}: {len(confirmed)} promotions")
        elapsed_s = time.monotonic() - began
    return Course(name, promoters * promotions, tuple(confirmed), count_present(world, confirmed), elapsed_s)


def promote(folder: Path, url: str, environ: Mapping[str, str], promoter: int, promotions: int) -> list[Promotion]:
    """What one process does."""
    world = World(folder, open_store(url, environ))
    done: list[Promotion] = []
    for turn in range(promotions):
        tries = 0

        def decide(new: Artifact, current: Artifact | None) -> Decision:
            nonlocal tries
            tries += 1
            return Decision(current is None, "nothing was there")

        artifact, files = make_artifact(f"operator_{promoter}_{turn}", f"code {promoter} {turn}".encode())
        began = time.monotonic()
        result = publish(world.store, world.keyring, CANARY, [artifact], files, decide)
        done.append(Promotion(artifact.table.name, result.number, tries, time.monotonic() - began))
    return done


def count_present(world: World, confirmed: list[Promotion]) -> int:
    """How many promotions are where their promoters were told."""
    states = history(world.store, world.keyring, CANARY)
    came = {
        state.index.number: set(state.index.tables) - set(before.index.tables if before else {})
        for state, before in zip(states, [*states[1:], None], strict=True)
    }
    found = world.puller().poll()
    served = {table.name for table in found.tables} if found else set()
    if len(came) != len(states):
        return 0
    return sum(one.table in served and one.table in came.get(one.number, ()) for one in confirmed)


def figure(course: Course) -> Figure:
    tries = statistics.mean([one.tries for one in course.confirmed] or [0])
    met = course.present == course.promised == len(course.confirmed)
    times = [1e3 * one.elapsed_s for one in course.confirmed] or [0.0]
    most = max([one.tries for one in course.confirmed] or [0])
    rate = len(course.confirmed) / course.elapsed_s
    return Figure(
        f"{PROMOTERS} promoters x {PROMOTIONS} promotions at once on one channel, {course.store}: present",
        ISSUE,
        f"all {course.promised}",
        "promotions",
        COMMAND,
        float(course.present),
        verdict=Outcome.MET if met else Outcome.MISSED,
        note=f"each promoter a process; {rate:.1f} promotions/s, {tries:.2f} tries each, {most} at most, "
        f"median {statistics.median(times):.0f} ms, mean {statistics.mean(times):.0f} ms, longest {max(times):.0f} ms",
    )


if __name__ == "__main__":
    sys.exit(main())
