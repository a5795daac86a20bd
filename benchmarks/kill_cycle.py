"""`python -m benchmarks.kill_cycle`: a cycle of the mill gets SIGKILL a hundred times, and ends as it would have.

One cycle is capture, search, second judgement and promotion into a registry, by the flow that the deployment runs. It
is run once in one piece; then, in a fresh home, it is killed at random moments with all its children and started again,
until it has been killed so often; then it may end. What is promoted by either is compared: operators, ranges,
candidates, shared objects byte by byte, gains.

Real are the flow, the session with its pattern agents and strategy, compilers and build cache, journal, ledger, memory,
MLflow's spool and SQLite, signatures and the store. Timings are replayed: a formula of the candidate and the workload
takes the place of the clock, in the search and in the second judgement, and a search ends after so many candidates;
measured times differ between any two runs, killed or not, and so would what they promote.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from agents.caps import BudgetCaps
from benchmarks.figures import Figure, Outcome, report
from flows.continuous import continuous_steps
from flows.steps import Step
from gristmill.directory_store import DirectoryStore
from gristmill.kernel_table import KernelTable
from gristmill.workload import Workload
from harness.builder import Builder, BuildPool
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from registry.publication import read_manifest
from registry.repository import Repository
from tasks import budgeting, mlflow_store, promotion, recruitment, search_memory, search_session
from tasks import journal as journals
from tasks.compilation import SearchResult, journal_path, run_searches, search_id_of
from tasks.mlflow_sink import SearchLog, send_leftovers
from tasks.recruitment import Staff
from tasks.settings import Settings
from tests.registry.world import shared_keys
from tests.tasks.world import PEAKS, Clock, FormulaBench, profile, rms_norm, settings, silu_and_mul

COMMAND = "python -m benchmarks.kill_cycle"
ISSUE = 6
KILLS = 100
CANDIDATES = 10
MEAN_S = 1.0
"""Between a start and its kill, about: a build takes as long, a judgement or a write a hundredth."""
SEED = 11
TRAFFIC = profile(rms_norm(1, 1024, time_ns=6_000_000), rms_norm(64, 1024), silu_and_mul(4, time_ns=2_000_000))
MEMORY = "/dev/shm"
BUILD_WORKERS = 2


@dataclass(frozen=True)
class Cycle:
    """What became of one cycle, through all its lives."""

    promoted: tuple[KernelTable, ...]
    judged: tuple[str, ...]
    """Digests in the journal, in order."""
    judgements: int
    twice: int
    """Judged although their verdict was on record."""
    runs: tuple[str, ...]
    """Candidates that MLflow has a run of, each as often as it has one."""
    generations: int
    unpaid: int
    """Judgements that the ledger does not know of."""
    lives: int = 1
    kills: int = 0
    elapsed_s: float = 0.0


@dataclass
class ReplayedBench:
    """Builds for real, ahead and in the build cache; tells the verdicts of a formula, and lists what it judged."""

    home: Path
    pool: BuildPool
    builder: Builder
    formula: FormulaBench = field(default_factory=lambda: FormulaBench(ratio_of, Clock()))

    def prepare(self, candidate: Candidate) -> None:
        self.pool.submit(candidate)

    def is_built(self, candidate: Candidate) -> bool:
        return True

    def build(self, candidate: Candidate) -> Verdict | None:
        return None

    def assembly(self, candidate: Candidate) -> str:
        return ""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int | None = None) -> Verdict:
        if seed is None:
            kept = journals.read(journal_path(settings(self.home), search_id_of(TRAFFIC, 0)))
            known = journals.task_key(candidate, workloads) in {entry.task for entry in kept}
            with (self.home / "judgements").open("a") as file:
                file.write(f"{candidate.digest} {'twice' if known else ''}\n")
        self.builder.build(candidate)
        return replace(self.formula.judge(candidate, workloads), duration_s=1.0)

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        return self.judge(candidate, workloads)

    def object_of(self, candidate: Candidate) -> bytes:
        path = self.builder.build(candidate).path
        assert path is not None
        return path.read_bytes()


def ratio_of(candidate: Candidate, workload: Workload) -> float:
    """The replayed timing: between 0.7x and 2.7x, by digests alone."""
    return 0.7 + 2.0 * (int(candidate.digest[:8], 16) ^ int(workload.digest[:8], 16)) / 0xFFFFFFFF


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help=f"{KILLS} count")
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="per operator")
    parser.add_argument("--mean-s", type=float, default=MEAN_S, help="from a start to its kill, on the average")
    parser.add_argument("--seed", type=int, default=1, help="of when it is killed")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-", dir=MEMORY if Path(MEMORY).is_dir() else None) as folder:
        whole = run(Path(folder) / "whole", arguments.candidates, lambda: None)
        print(f"in one piece: {len(whole.judged)} candidates in {whole.elapsed_s:.0f} s", flush=True)
        chance = random.Random(arguments.seed)
        left = [chance.expovariate(1 / arguments.mean_s) for _ in range(arguments.kills)]
        killed = run(Path(folder) / "killed", arguments.candidates, lambda: left.pop() if left else None)
        if left:
            print(f"the cycle ended after {killed.kills} kills; give it more --candidates", flush=True)
    rows = figures(whole, killed)
    return report(rows, keep=not arguments.dry_run and killed.kills >= KILLS)


def run(folder: Path, candidates: int, next_kill_s: Callable[[], float | None]) -> Cycle:
    """A cycle through as many lives as it takes."""
    chosen = settings(folder / "home", folder / "store")
    (folder / "store").mkdir()
    shutil.copytree(shared_keys(), chosen.keys_dir)
    Repository(_store(chosen), promotion.keyring_of(chosen)).initialise()
    mlflow_store.open_store(chosen.home)
    began, lives, kills = time.monotonic(), 0, 0
    while True:
        lives += 1
        ended = _life(chosen, candidates, next_kill_s())
        kills += not ended
        if ended:
            break
        if lives % 10 == 0:
            print(f"  {kills} kills, {len(_kept(chosen))} verdicts, {time.monotonic() - began:.0f} s", flush=True)
    return replace(_outcome(chosen), lives=lives, kills=kills, elapsed_s=time.monotonic() - began)


def _life(chosen: Settings, candidates: int, kill_s: float | None) -> bool:
    """Forks a process that runs the cycle, and kills it with its children after so long. Whether it came to its end."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setpgid(0, 0)
            turn(chosen, candidates)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    deadline_s = None if kill_s is None else time.monotonic() + kill_s
    while deadline_s is None or time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG if deadline_s is not None else 0)
        if ended:
            if status:
                raise RuntimeError(f"the cycle failed with status {status}")
            return True
        time.sleep(0.005)
    _kill_group(pid)
    os.waitpid(pid, 0)
    return False


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it was killed before it had a group
        os.kill(pid, signal.SIGKILL)


def turn(chosen: Settings, candidates: int) -> None:
    """The cycle, in this process."""
    builder = Builder(chosen.judge_dir)
    with BuildPool(builder, BUILD_WORKERS) as pool:
        bench = ReplayedBench(chosen.home, pool, builder)

        class Counting(search_session.SearchSession):
            """A second per candidate passes, and none otherwise."""

            def __init__(self, *arguments: Any, **keywords: Any) -> None:
                super().__init__(*arguments, clock=bench.formula.clock, **keywords)

        def search(given: Settings, traffic: Any, *_: Any) -> SearchResult:
            search_id = search_id_of(traffic, 0)
            with (
                budgeting.open_ledger(given) as ledger,
                search_memory.opened(given) as memory,
                SearchLog(given.home, search_id) as log,
            ):
                result = run_searches(
                    bench,
                    log,
                    given,
                    traffic,
                    PEAKS,
                    budget_s=2.0 * candidates,
                    budget=ledger.budget(search_id, BudgetCaps()),
                    staff=Staff(memory=memory),
                )
                log.finish({})
            return result

        def prove(given: Settings, traffic: Any, winners: Any, *_: Any) -> Any:
            return tuple((promotion.prove(bench, traffic, found), {"torch": "2"}) for found in winners.values())

        replaced: dict[str, Callable[..., Any]] = {
            "capture_profile": lambda *_: TRAFFIC,
            "cached_peaks": lambda _: PEAKS,
            "search_operators": search,
            "prove_winners": prove,
        }
        with (
            patch.object(recruitment, "SearchSession", Counting),
            patch.object(secrets, "randbits", lambda bits: SEED),
        ):
            step = cast(Step, lambda function: replaced.get(function.__name__, function))
            continuous_steps(chosen, step, window_h=1.0, budget_s=1.0, channel="canary")


def _store(chosen: Settings) -> DirectoryStore:
    return DirectoryStore(Path(chosen.store_url.removeprefix("file://")))


def _kept(chosen: Settings) -> list[journals.JournalEntry]:
    return journals.read(journal_path(chosen, search_id_of(TRAFFIC, 0)))


def _outcome(chosen: Settings) -> Cycle:
    """What is on record and published once it has ended."""
    send_leftovers(chosen.home)
    store, repository = _store(chosen), Repository(_store(chosen), promotion.keyring_of(chosen))
    channel = promotion.channel_of(chosen, "canary")
    entry = repository.current(channel)
    tables = [read_manifest(store, one).table for one in entry.index.tables.values()] if entry else []
    lines = (chosen.home / "judgements").read_text().splitlines()
    client = mlflow_store.open_store(chosen.home)
    (experiment,) = [one for one in client.search_experiments() if one.name == "gristmill"]
    found = client.search_runs([experiment.experiment_id], "tags.kind = 'candidate'", max_results=5000)
    with budgeting.open_ledger(chosen) as ledger:
        accounts = ledger.searches()
    paid = sum(one.calls + one.calls_in_flight + one.calls_abandoned for one in accounts)
    return Cycle(
        promoted=tuple(sorted(tables, key=lambda table: table.name)),
        judged=tuple(one.candidate.digest for one in _kept(chosen)),
        judgements=len(lines),
        twice=sum(line.endswith("twice") for line in lines),
        runs=tuple(run.data.tags["candidate"] for run in found if run.info.status == "FINISHED"),
        generations=len(list(repository.history(channel))),
        unpaid=max(0, len(lines) - paid),
    )


def figures(whole: Cycle, killed: Cycle) -> list[Figure]:
    """The rows of the issue."""
    differing = sum(a != b for a, b in zip(whole.promoted, killed.promoted, strict=False))
    differing += abs(len(whole.promoted) - len(killed.promoted))
    faults = {
        "the candidates judged, or their order": whole.judged != killed.judged,
        "generations published": killed.generations != whole.generations,
        "candidates without exactly one MLflow run": Counter(killed.runs) != Counter(killed.judged),
        "judgements that the ledger lacks": killed.unpaid > 0,
    }
    told = [name for name, wrong in faults.items() if wrong]
    entries = sum(len(table.entries) for table in whole.promoted)
    note = (
        f"{killed.kills} SIGKILLs of the process group at random moments, {killed.lives} lives; in one piece "
        f"{whole.elapsed_s:.0f} s, killed {killed.elapsed_s:.0f} s; compared are {len(whole.promoted)} tables with "
        f"{entries} ranges (candidates, objects byte by byte, gains), the {len(whole.judged)} candidates in order, "
        "one generation, one MLflow run each, a ledger that lacks nothing; builds, session, journal, ledger, memory, "
        "MLflow and signatures are real, timings are replayed from a formula"
        + (f"; differs: {', '.join(told)}" if told else "")
    )
    same = Outcome.MET if not differing and not told and whole.promoted else Outcome.MISSED
    title = f"{KILLS} random kill -9 in one cycle"
    repeated = killed.judgements - len(killed.judged)
    return [
        Figure(
            f"{title}: what is promoted differs from a cycle in one piece",
            ISSUE,
            "not at all",
            f"of {len(whole.promoted)} tables",
            COMMAND,
            float(differing),
            verdict=same,
            note=note,
        ),
        Figure(
            f"{title}: candidates judged although their verdict was on record",
            ISSUE,
            "none",
            f"of {len(killed.judged)}",
            COMMAND,
            float(killed.twice),
            verdict=Outcome.MISSED if killed.twice else Outcome.MET,
            note=f"{repeated} judgements were cut off before their verdict was on disk, and were begun again",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
