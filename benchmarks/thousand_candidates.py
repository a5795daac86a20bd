"""`python -m benchmarks.thousand_candidates`: what Prefect and MLflow take of a cycle that judges a thousand.

A search session judges a thousand distinct candidates, as one task of a Prefect flow on a server of its own, while the
search's log sends each to MLflow in SQLite: what the deployments do. The judge waits as long as `--judge-s` says, which
is far less than a real judgement takes, so that the share is an upper bound. The same session is run without both and
without waits, to know what is its own. Then every candidate must be a finished MLflow run, once, and no log may speak
of a locked database.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agents.brief import Brief
from agents.strategies.best_of_n import BestOfN
from benchmarks.figures import Figure, Outcome, report
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import local_server, mlflow_store
from tasks.journal import Journal
from tasks.mlflow_sink import SearchLog
from tasks.search_session import SearchSession, TrialLog
from tests.tasks.world import FormulaBench, ListLog, candidate, rms_norm

COMMAND = "python -m benchmarks.thousand_candidates"
ISSUE = 6
CANDIDATES = 1000
JUDGE_S = 0.2
SHARE = 0.10
SEARCH = "thousand"
WORKLOADS = (rms_norm(1), rms_norm(64))
READY_S = 180.0


@dataclass(frozen=True)
class Measured:
    """Of the cycle with both, and of the same session by itself."""

    candidates: int
    wall_s: float
    """With Prefect and MLflow, from the flow's start to the last record in MLflow."""
    waited_s: float
    """Of it, for the judge."""
    bare_s: float
    """The same session without either, without waits."""
    runs: tuple[str, ...]
    """Candidates of the finished MLflow runs, each as often as there is one."""
    judged: tuple[str, ...]
    locked: tuple[str, ...]
    """Log lines that speak of a lock."""
    completed: bool
    """Whether Prefect has the flow run as completed."""

    @property
    def overhead_s(self) -> float:
        return max(0.0, self.wall_s - self.waited_s - self.bare_s)

    @property
    def share(self) -> float:
        return self.overhead_s / self.wall_s

    @property
    def lost(self) -> int:
        """Candidates that were not judged, or are not one finished run each."""
        found, judged = Counter(self.runs), Counter(self.judged)
        never = max(0, self.candidates - len(judged))
        return sum(((found - judged) + (judged - found)).values()) + never


@dataclass
class WaitingBench(FormulaBench):
    """A bench that takes its time."""

    judge_s: float = 0.0
    waited_s: float = 0.0

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int | None = None) -> Verdict:
        began = time.monotonic()
        time.sleep(self.judge_s)
        self.waited_s += time.monotonic() - began
        return super().judge(candidate, workloads, seed=seed)


@dataclass
class CountingAgent:
    """An agent that proposes so many candidates, each once."""

    left: int
    name: str = "pattern:count"

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        taken = min(count, self.left)
        self.left -= taken
        return [candidate(self.left + number) for number in range(taken)]

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        """It knows what it will propose."""


class Endless(BestOfN):
    """Never has enough: real ones end a search that has long gained nothing."""

    def enough(self) -> str:
        return ""


@dataclass
class Locks(logging.Handler):
    """Keeps lines about locks, of whatever logger of this process."""

    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.DEBUG)

    __hash__ = logging.Handler.__hash__

    def emit(self, record: logging.LogRecord) -> None:
        if "locked" in record.getMessage():
            self.lines.append(record.getMessage()[:300])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help=f"{CANDIDATES} count")
    parser.add_argument("--judge-s", type=float, default=JUDGE_S, help="that a judgement takes")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        measured = measure(Path(folder), arguments.candidates, arguments.judge_s)
    keep = not arguments.dry_run and measured.candidates >= CANDIDATES
    return report(figures(measured, arguments.judge_s), keep=keep)


def measure(folder: Path, candidates: int, judge_s: float) -> Measured:
    """Both runs, in a fresh home."""
    began = time.monotonic()
    search(folder / "bare", candidates, WaitingBench(_ratio), ListLog())
    bare_s = time.monotonic() - began
    print(f"the session by itself: {bare_s:.1f} s", flush=True)
    home, locks = folder / "home", Locks()
    home.mkdir()
    mlflow_store.open_store(home)
    logging.getLogger().addHandler(locks)
    with ExitStack() as stack:
        server, env = local_server.prefect_server(home, local_server.free_port())
        stack.enter_context(server)
        os.environ.update(env)
        server.wait_ready(READY_S)
        from flows import steps

        bench, state = WaitingBench(_ratio, judge_s=judge_s), [""]
        steps.run("warm up", lambda step: step(mlflow_store.is_local)(""))
        began = time.monotonic()

        def cycle(step: steps.Step) -> None:
            from prefect.runtime import flow_run

            state[0] = str(flow_run.id)
            step(logged_search)(home, candidates, bench)
            steps.table_artifact("thousand", [{"candidates": str(candidates)}], "Searched")

        steps.run("thousand candidates", cycle)
        wall_s = time.monotonic() - began
        completed = _is_completed(state[0])
    server_log = (home / "logs" / "prefect-server.log").read_text(errors="replace").splitlines()
    return Measured(
        candidates,
        wall_s,
        bench.waited_s,
        bare_s,
        _runs(home),
        tuple(bench.judged),
        (*locks.lines, *(line[:300] for line in server_log if "database is locked" in line)),
        completed,
    )


def logged_search(home: Path, candidates: int, bench: WaitingBench) -> int:
    """As `tasks.bench_session` does it: returns once MLflow has everything."""
    with SearchLog(home, SEARCH) as log:
        judged = search(home / "search", candidates, bench, log)
        log.finish({"judged": judged})
        log.close(stall_s=60.0)
    return judged


def search(folder: Path, candidates: int, bench: WaitingBench, log: TrialLog) -> int:
    """One session until its agent has nothing left; returns how many it judged."""
    brief = Brief("rms_norm", "float32", WORKLOADS, local_cpu(), 2, 20.0, 100.0)
    journal, strategy = Journal(folder / "verdicts.jsonl"), Endless(brief)
    session = SearchSession(bench, [CountingAgent(candidates)], brief, journal, log, strategy=strategy)
    return sum(1 for _ in session.run(86_400.0))


def _ratio(one: Candidate, workload: Workload) -> float:
    return 0.7 + int(one.digest[:4], 16) / 0xFFFF


def _is_completed(flow_run_id: str) -> bool:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run_id).state  # type: ignore[arg-type]
    return state is not None and state.is_completed()


def _runs(home: Path) -> tuple[str, ...]:
    client = mlflow_store.open_store(home)
    ids = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(ids, "tags.kind = 'candidate'", max_results=50_000)
    return tuple(run.data.tags["candidate"] for run in found if run.info.status == "FINISHED")


def figures(measured: Measured, judge_s: float) -> list[Figure]:
    """The rows of the issue."""
    title = f"{CANDIDATES:,} candidates in one cycle"
    note = (
        f"{measured.wall_s:.0f} s in all: {measured.waited_s:.0f} s for a judge of {judge_s:g} s a candidate, "
        f"{measured.bare_s:.1f} s for the session itself, {measured.overhead_s:.1f} s more with Prefect (a server) "
        "and MLflow (SQLite) until the last record was there; a real judgement takes longer; but this one waits, so "
        "that what MLflow's thread takes of a core beside it (some 0.04 s a candidate) is not counted"
    )
    lost = measured.lost + len(measured.locked) + (not measured.completed)
    told = f"; {measured.locked[0]}" if measured.locked else ""
    said = (
        f"{len(measured.runs)} finished MLflow runs of {len(measured.judged)} candidates judged; lock errors in logs: "
        f"{len(measured.locked)}; the flow run is {'completed' if measured.completed else 'not completed'}{told}"
    )
    return [
        Figure(
            f"{title}: wall time that Prefect and MLflow take",
            ISSUE,
            f"under {SHARE:.0%}",
            "%",
            COMMAND,
            100 * measured.share,
            verdict=Outcome.MET if measured.share < SHARE else Outcome.MISSED,
            note=note,
        ),
        Figure(
            f"{title}: records lost and lock errors",
            ISSUE,
            "none",
            f"of {measured.candidates}",
            COMMAND,
            float(lost),
            verdict=Outcome.MISSED if lost else Outcome.MET,
            note=said,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
