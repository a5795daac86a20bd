"""`python -m benchmarks.junk_model`: a search by a language model that cannot write a kernel.

The model is real (`benchmarks.local_model`: 270 million parameters, never taught to chat), and so is all else: provider
process, agents, judge, journal, budget. No pattern agent helps. Asked is that two hundred of its proposals end as they
should: none crashes the search, nothing of them would be promoted, and what became of them is said by reason.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.brief import Brief
from agents.caps import BudgetCaps, Caps
from agents.chat import ChatModel
from agents.conversation import ChatSettings
from agents.episode import Episode
from agents.llm_agent import LlmAgent, Way
from agents.models import configuration
from agents.redaction import Redactor
from agents.spending import Budget
from benchmarks import local_model
from benchmarks.figures import Figure, Outcome, record
from cli import home as state
from cli.progress import ProgressLine
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.candidate import Candidate
from kernels.roofline import Peaks, cached_peaks
from kernels.verdict import Verdict
from tasks import bench, budgeting
from tasks.journal import Journal
from tasks.judging_queue import JudgingQueue
from tasks.live_workshop import LiveWorkshop
from tasks.proposal_record import ProposalRecord
from tasks.recruitment import TOOLCHAIN
from tasks.search_session import Bench, SearchSession
from tasks.settings import Settings
from tasks.swarm import Swarm

COMMAND = "python -m benchmarks.junk_model"
ISSUE = 4
PROPOSALS = 200
AGENTS = 8
SETTINGS = ChatSettings(max_output_tokens=96, timeout_s=600.0, max_prompt_characters=6_000)
"""What such a model can read and write."""
TOKENS = (1, 16)


@dataclass
class Tally:
    """What became of everything, as it happens. An `EpisodeLog` and a `TrialLog`."""

    progress: ProgressLine
    episodes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    won: int = 0
    bugs: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def proposals(self) -> int:
        return self.episodes.total()

    def record(self, episode: Episode) -> None:
        with self._lock:
            self.episodes[episode.outcome.value] += 1
            self.reasons[f"{episode.outcome.value}: {episode.reason}"] += 1
            told = ", ".join(f"{count} {outcome}" for outcome, count in self.episodes.most_common())
        self.progress.show(f"{self.proposals} proposals: {told}")


@dataclass(frozen=True)
class Verdicts:
    """The same tally, as the session's log of trials."""

    tally: Tally

    def record(self, candidate: Candidate, verdict: Verdict, step: int) -> None:
        self.tally.verdicts[verdict.status.value] += 1
        self.tally.won += verdict.won


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=PROPOSALS)
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, ProgressLine(sys.stderr) as progress:
        tally = Tally(progress)
        search(Path(folder), tally, arguments.proposals)
    for reason, count in tally.reasons.most_common():
        print(f"{count:5}  {reason}")
    made = figure(tally)
    shown = made if arguments.dry_run else record(made)
    print(f"{shown.name}: target {shown.target}, measured {shown.measured}: {shown.verdict.value}\n  {shown.note}")
    for bug in tally.bugs:
        print(bug, file=sys.stderr)
    return 0


def search(home: Path, tally: Tally, proposals: int) -> None:
    """Sessions, one after the other, until the model has made so many proposals: agents leave that have no success."""
    settings = Settings(home, "", "benchmark", "junk", local_cpu().key, "")
    peaks = cached_peaks(settings.peaks_path)
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(local_model.served(state.home(), SETTINGS.max_output_tokens))
        models = stack.enter_context(configuration.opened([served], tally.progress.show))
        ledger = stack.enter_context(budgeting.open_ledger(settings))
        judges = stack.enter_context(bench.search_bench(settings))
        budget = ledger.budget("junk", BudgetCaps(Caps(), Caps()))
        while tally.proposals < proposals:
            before = tally.proposals
            _session(home / f"from-{before}", judges, models, budget, peaks, tally)
            if tally.proposals == before:
                raise RuntimeError(f"the model makes no proposals: {tally.bugs}")


def _session(
    folder: Path, judges: Bench, models: Sequence[ChatModel], budget: Budget, peaks: Peaks, tally: Tally
) -> None:
    queue = JudgingQueue()
    workshop = LiveWorkshop(judges, queue)
    redact = Redactor.of_this_host().text
    agents = [
        LlmAgent(
            f"llm:{number}",
            models[0],
            budget,
            tally,
            redact,
            TOOLCHAIN,
            workshop,
            way=Way(use_tools=number % 2 == 1, turns=2, repairs=number % 4 // 2),
            settings=SETTINGS,
        )
        for number in range(AGENTS)
    ]
    swarm = Swarm(agents, queue, workshop, ProposalRecord(folder / "proposals.jsonl"))
    brief = Brief(
        "rms_norm",
        "float32",
        workloads(),
        local_cpu(),
        peaks.cores,
        peaks.memory_bandwidth_gb_s,
        peaks.gflops["float32"],
    )
    session = SearchSession(judges, (), brief, Journal(folder / "verdicts.jsonl"), Verdicts(tally), swarm=swarm)
    for _ in session.run(budget_s=3600.0):
        pass
    tally.bugs += [gone.trace for gone in session.course.departures if gone.trace]


def workloads() -> tuple[Workload, ...]:
    definition = catalogue.operator("rms_norm")
    return tuple(inputs.workload(definition, "float32", tokens=tokens, hidden=1024) for tokens in TOKENS)


def figure(tally: Tally) -> Figure:
    """The row: what would be promoted, or crashed the search."""
    reached = not tally.won and not tally.bugs and tally.proposals >= PROPOSALS
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in tally.episodes.most_common())
    judged = ", ".join(f"{count} {status}" for status, count in tally.verdicts.most_common()) or "none"
    return Figure(
        f"junk model, {PROPOSALS} proposals: crashes and candidates to promote",
        ISSUE,
        "none, and a summary by reason",
        f"of {tally.proposals}",
        COMMAND,
        float(tally.won + len(tally.bugs)),
        verdict=Outcome.MET if reached else Outcome.MISSED,
        note=f"{local_model.NAME}: {outcomes}; judged: {judged}",
    )


if __name__ == "__main__":
    sys.exit(main())
