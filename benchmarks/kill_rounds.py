"""`python -m benchmarks.kill_rounds`: promoters, host and store get SIGKILL at random moments, and nothing may be lost.

Two promoters publish without rest into one channel of a SeaweedFS; a host follows it and calls the kernel. In each
round one of them, or two, are killed at a random moment and started again. Then a host without network, on the cache of
the other, must serve what that one had; promotions must go on; and the host must come to the newest that was confirmed.
Now and then, and at the end, all that were confirmed must be in the channel's history, with their files. With
--folder a run that was cut off goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import fleet
from benchmarks.figures import Figure, Outcome, report
from benchmarks.fleet import NOWHERE, OPERATOR, Address, Answer, Child, Promotion
from cli.progress import ProgressLine
from gristmill import durable_file, records, store, trust
from gristmill.errors import GristmillError
from registry.embedded_store import EmbeddedStore, running_or_started
from registry.publication import read_manifest
from tests.registry.world import CANARY, World

COMMAND = "python -m benchmarks.kill_rounds"
ISSUE = 5
ROUNDS = 500
POLL_S = 0.05
MOMENT_S = 0.4
"""A kill comes at any moment of so long: a promotion takes about a third of it, and so does the host's way to it."""
PROMOTED = {"promoter": OPERATOR, "second promoter": "softmax"}
PARTS = (*PROMOTED, "host", "store")
TWO = 0.25
"""How often two of them are killed at once."""
FOUND = (
    "found by it and mended: SeaweedFS started again answers before it has found its volumes, and then denies for "
    "seconds what it holds"
)
LOOK_EVERY = 50
"""Rounds between two looks at what was confirmed."""
READS_AT_ONCE = 8
GO_ON_S = 60.0


@dataclass(frozen=True)
class Tally:
    """What came of all rounds so far; kept in the run's folder after each."""

    rounds: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    confirmed: int = 0
    lost: tuple[str, ...] = ()
    """Confirmed promotions that are not there, or not whole."""
    idle: tuple[str, ...] = ()
    """Hosts that had no working generation, or that did not come to the newest one."""
    elapsed_s: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"in all; {ROUNDS} count")
    parser.add_argument("--seed", type=int, default=1, help="of who is killed and when")
    parser.add_argument("--folder", type=Path, help="where the run is kept, and goes on if it was cut off")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mill-")))
        tally = run(folder, arguments.rounds, arguments.seed)
    code = report(figures(tally), keep=not arguments.dry_run and tally.rounds >= ROUNDS)
    for problem in (*tally.lost, *tally.idle):
        print(problem)
    return code


def run(folder: Path, rounds: int, seed: int) -> Tally:
    """Goes on to so many rounds from wherever the folder's run is, and looks through everything at the end."""
    path = folder / "tally.json"
    tally = records.parse(Tally, path.read_bytes()) if path.exists() else Tally()
    with ProgressLine(sys.stderr) as progress, Scene(folder) as scene:
        while tally.rounds < rounds:
            began = time.monotonic()
            tally = scene.round(tally, random.Random(f"{seed} {tally.rounds}"))
            rounds_done = tally.rounds + 1
            tally = replace(tally, rounds=rounds_done, elapsed_s=tally.elapsed_s + time.monotonic() - began)
            if rounds_done % LOOK_EVERY == 0:
                tally = scene.look(tally)
            durable_file.write(path, records.canonical_json(tally))
            progress.show(f"round {tally.rounds}: {tally.confirmed} confirmed, {len(tally.lost)} lost")
        progress.show("looking through everything")
        return scene.look(tally, everything=True)


class Scene:
    """The processes of a run. Whatever ends the block, none of them is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = contextlib.ExitStack()
        self._children: dict[str, Child] = {}
        self._read = 0
        self._generation = 0
        """What the host has served at least."""

    def __enter__(self) -> Scene:
        try:
            self._start_store()
            self.world = fleet.open_registry(self._folder, self._at)
            for name in (*PROMOTED, "host"):
                self._start(name)
            self._check_going_on()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.kill()
        self._running.close()

    def round(self, tally: Tally, chance: random.Random) -> Tally:
        """Kills, starts again, and looks."""
        victims = chance.sample(PARTS, 2 if chance.random() < TWO else 1)
        time.sleep(chance.uniform(0, MOMENT_S))
        for victim in victims:
            self._kill(victim)
        idle = problems_of(self._ask_offline(), "offline", self._generation)
        if "store" in victims:
            self._start_store()
        for victim in victims:
            if victim != "store":
                self._start(victim)
        idle += self._check_going_on()
        everything, _ = fleet.books(self._folder)
        newest = max((one.number for one in everything if one.table.startswith(OPERATOR)), default=0)
        answer = fleet.ask(self._children["host"].line, newest)
        idle += problems_of(answer, "following", newest)
        self._generation = max(self._generation, answer.generation if answer else 0)
        where = f"round {tally.rounds}, {' and '.join(victims)} killed: "
        kills, said = Counter(tally.kills) + Counter(victims), tuple(where + problem for problem in idle)
        return replace(tally, kills=dict(kills), confirmed=len(everything), idle=(*tally.idle, *said))

    def look(self, tally: Tally, everything: bool = False) -> Tally:
        """Looks for what was confirmed since the last look, or for everything, once no promoter runs any more."""
        if everything:
            for name in PROMOTED:
                self._kill(name)
        confirmed, self._read = fleet.books(self._folder, 0 if everything else self._read)
        lost = dict.fromkeys((*tally.lost, *missing_of(self.world, confirmed)))
        return replace(tally, confirmed=len(confirmed) if everything else tally.confirmed, lost=tuple(lost))

    def _start_store(self) -> None:
        self._store: EmbeddedStore = self._running.enter_context(running_or_started(self._folder / "embedded"))
        self._at = Address(self._store.url, self._store.environ)

    def _start(self, name: str) -> None:
        if name == "host":
            self._children[name] = fleet.start(fleet.serve, self._folder, self._at, POLL_S)
        else:
            self._children[name] = fleet.start(fleet.promote_without_rest, self._folder, self._at, PROMOTED[name])

    def _kill(self, name: str) -> None:
        if name == "store":
            os.kill(self._store.pid, signal.SIGKILL)
            self._running.close()
        else:
            self._children.pop(name).kill()

    def _ask_offline(self) -> Answer | None:
        offline = fleet.start(fleet.serve, self._folder, NOWHERE, POLL_S)
        try:
            return fleet.ask(offline.line, self._generation)
        finally:
            offline.kill()

    def _check_going_on(self) -> list[str]:
        """Waits for one more promotion."""
        _, before = fleet.books(self._folder)
        deadline_s = time.monotonic() + GO_ON_S
        while fleet.books(self._folder, before)[1] == before:
            if time.monotonic() > deadline_s:
                return ["no promoter went on"]
            time.sleep(0.02)
        return []


def problems_of(answer: Answer | None, how: str, at_least: int) -> list[str]:
    """What is wrong with a host's answer; once something was published there must be a kernel to call."""
    if answer is None:
        return [f"the host {how} died"]
    if at_least and not (answer.served and answer.right and answer.generation >= at_least):
        return [f"the host {how} was to serve {at_least}: {answer}"]
    return []


def missing_of(world: World, confirmed: Sequence[Promotion]) -> list[str]:
    """What of these promotions is not in the channel's history as it was confirmed, or not whole."""
    if not confirmed:
        return []
    try:
        oldest, states = min(one.number for one in confirmed), {}
        for entry in world.repository.history(CANARY):
            if entry.index.number < oldest:
                break
            states[entry.index.number] = entry.index.tables
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            problems = pool.map(lambda one: _problem(world, one, states.get(one.number, {})), confirmed)
            return [f"{one}: {problem}" for one, problem in zip(confirmed, problems, strict=True) if problem]
    except GristmillError as error:
        return [f"the registry cannot be read: {error}"]


def _problem(world: World, one: Promotion, tables: dict[str, str]) -> str:
    if tables.get(one.table) != one.manifest:
        return "not in the state that was confirmed"
    try:
        artifact = read_manifest(world.store, one.manifest)
        store.read(world.store, trust.attestation_key(one.manifest, trust.JUDGE))
        for file in trust.all_files(artifact):
            if records.sha256_hex(store.read(world.store, trust.blob_key(file.sha256))) != file.sha256:
                return f"{file.path} is damaged"
    except GristmillError as error:
        return str(error)
    return ""


def figures(tally: Tally) -> list[Figure]:
    """The two rows."""
    kills = ", ".join(f"{name} {tally.kills.get(name, 0)}" for name in PARTS)
    round_s = tally.elapsed_s / max(tally.rounds, 1)
    title = f"kill -9 of promoter, host, store at random, {ROUNDS} rounds"
    lost = f"kills: {kills}; {tally.confirmed} promotions confirmed meanwhile; {round_s:.2f} s a round; {FOUND}"
    idle = "asked in each round: one that starts offline, and the one that follows"
    return [
        _row(f"{title}: confirmed promotions lost", tally.lost, f"of {tally.confirmed}", lost),
        _row(f"{title}: hosts without a working generation", tally.idle, f"of {2 * tally.rounds}", idle),
    ]


def _row(name: str, problems: Sequence[str], unit: str, note: str) -> Figure:
    said = "".join(f"; {problem}" for problem in problems[:3])
    verdict = Outcome.MISSED if problems else Outcome.MET
    return Figure(name, ISSUE, "none", unit, COMMAND, float(len(problems)), verdict=verdict, note=note + said)


if __name__ == "__main__":
    sys.exit(main())
