"""`python -m benchmarks.swarm`: 64 agents that ask a language model which takes two seconds to answer, and one judge.

All is as in a search, but for the model: its provider's server is scripted (`benchmarks.openai_server`, in a process of
its own), and writes kernels for rms_norm of which some do not build and some answers hold no program. Half of the
agents answer at once, half work with tools. Asked is how much of the time the judge was at work, what all processes
took together, and whether every answer can be accounted for: it is in an episode, and each of its candidates has a
verdict or a recorded reason why it has none.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.caps import BudgetCaps, Caps
from agents.episode import Episode, EpisodeLog
from agents.models import configuration
from agents.models.configuration import ModelSettings
from agents.redaction import Redactor
from benchmarks.figures import ROOT, Figure, Outcome, record
from benchmarks.openai_server import Behaviour, OpenAIServer
from cli.memory import MemoryPeak
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.profile import RequestStatistics, TrafficProfile
from kernels.roofline import cached_peaks
from tasks import bench, budgeting, compilation, search_memory
from tasks.compilation import OperatorSearch
from tasks.journal import Journal
from tasks.mlflow_sink import SearchLog
from tasks.proposal_record import ProposalRecord
from tasks.recruitment import Recruits, Staff, record_path
from tasks.settings import Settings

COMMAND = "python -m benchmarks.swarm"
ISSUE = 4
AGENTS = 64
LATENCY_S = 2.0
MODEL = "openai/mock"
LEAST_BUSY = 0.9
MOST_GIB = 2.0
PROSE_EVERY, BROKEN_EVERY = 10, 9
"""One answer in so many holds no program, or one that does not build."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)
"""As many workloads as a search scores an operator of one shape on (`tasks.search_scope.SEARCH`)."""
KERNEL = """// %(number)d
#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  constexpr int LANES = %(lanes)d;
  const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
  const float *weight = static_cast<const float *>(call->inputs[1].data);
  const int64_t tokens = x.shape[0], hidden = x.shape[1];
  const float eps = static_cast<float>(call->scalars[0]);
  for (int64_t t = 0; t < tokens; ++t) {
    const float *row = static_cast<const float *>(x.data) + t * x.stride[0];
    float *to = static_cast<float *>(out.data) + t * hidden;
    float sums[LANES] = {};
    int64_t h = 0;
    for (; h + LANES <= hidden; h += LANES)
      for (int lane = 0; lane < LANES; ++lane) sums[lane] += row[h + lane] * row[h + lane];
    for (; h < hidden; ++h) sums[h %% LANES] += row[h] * row[h];
    float sum = 0;
    for (float lane : sums) sum += lane;
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(hidden) + eps);
    for (h = 0; h < hidden; ++h) to[h] = row[h] * scale * weight[h];
  }
  return %(result)s;
}
"""


class MockModel:
    """What the server answers. It runs on one thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._random = random.Random(0)

    def __call__(self, request: Mapping[str, Any]) -> Behaviour:
        number = next(self._numbers)
        if request.get("tools"):
            return self._tool(number, sum(message["role"] == "tool" for message in request["messages"]))
        repaired = any(message["role"] == "assistant" for message in request["messages"])
        if number % PROSE_EVERY == 0 and not repaired:
            return Behaviour("Vectors would help here, I think.", delay_s=LATENCY_S)
        broken = number % BROKEN_EVERY == 0 and not repaired
        return Behaviour(f"```cpp main.cpp\n{self._kernel(number, broken)}```\n", delay_s=LATENCY_S)

    def _tool(self, number: int, results: int) -> Behaviour:
        """Checks a program, measures it, hands it in."""
        if results == 0:
            arguments: dict[str, Any] = {"files": {"main.cpp": self._kernel(number, False)}}
            return Behaviour(tool_calls=(("check", json.dumps(arguments)),), delay_s=LATENCY_S)
        name = "measure" if results == 1 else "submit"
        return Behaviour(tool_calls=((name, json.dumps({"program": "p1"})),), delay_s=LATENCY_S)

    def _kernel(self, number: int, broken: bool) -> str:
        lanes = self._random.choice((4, 8, 16, 32))
        return KERNEL % {"number": number, "lanes": lanes, "result": "nothing" if broken else "0"}


@dataclass
class CountingLog:
    """Passes episodes on, and keeps what has to be accounted for."""

    log: EpisodeLog
    answers: int = 0
    proposed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, episode: Episode) -> None:
        self.log.record(episode)
        with self._lock:
            self.answers += sum(step.model is not None and step.model.answer is not None for step in episode.steps)
            self.proposed += episode.candidates


@dataclass(frozen=True)
class Measured:
    """One run."""

    search: OperatorSearch
    answered: int
    """Requests that the server answered."""
    recorded: int
    """Answers in episodes."""
    unaccounted: int
    """Candidates of episodes with neither a verdict nor a reason."""
    peak_bytes: int

    @property
    def lost(self) -> int:
        return self.answered - self.recorded + self.unaccounted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="of search")
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder:
        measured = measure(Path(folder), arguments.seconds, arguments.agents)
    for figure in figures(measured, arguments.agents):
        shown = figure if arguments.dry_run else record(figure)
        print(f"{shown.name}: target {shown.target}, measured {shown.measured} {shown.unit}: {shown.verdict.value}")
        print(f"  {shown.note}")
    return 0


def serve() -> int:
    """The provider's server: says where it listens, and at the end of its input how many requests it answered."""
    with OpenAIServer(MockModel()) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(len(server.requests) - server.open_requests, flush=True)
    return 0


@contextlib.contextmanager
def provider() -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and what ends it and says how many requests it answered."""
    command = [sys.executable, "-m", "benchmarks.swarm", "--serve"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), lambda: int(process.communicate()[0])
    finally:
        process.kill()
        process.wait()


def measure(home: Path, seconds: float, agents: int) -> Measured:
    """One search by that many agents."""
    (home / "store").mkdir()
    hardware = local_cpu().key
    settings = Settings(home, f"file://{home / 'store'}", "benchmark", "mock", hardware, "")
    peaks = cached_peaks(settings.peaks_path)
    profile = _profile(hardware)
    search_id = compilation.search_id_of(profile, 0)
    redactor = Redactor.of_this_host()
    with contextlib.ExitStack() as stack:
        url, answered = stack.enter_context(provider())
        peak = stack.enter_context(MemoryPeak())
        model = ModelSettings(MODEL, usd_per_million_input_tokens=1.0, usd_per_million_output_tokens=1.0, api_base=url)
        models = stack.enter_context(configuration.opened([model], print))
        ledger = stack.enter_context(budgeting.open_ledger(settings))
        memory = stack.enter_context(search_memory.opened(settings))
        judges = stack.enter_context(bench.search_bench(settings))
        log = stack.enter_context(SearchLog(home, search_id, redactor=redactor))
        episodes = CountingLog(log.episodes)
        proposals = ProposalRecord(record_path(settings.searches_dir / search_id))
        budget = ledger.budget(search_id, BudgetCaps(Caps(), Caps()))
        recruits = Recruits(models, agents, budget, episodes, redactor.text, proposals)
        result = compilation.run_searches(
            judges,
            log,
            settings,
            profile,
            peaks,
            budget_s=seconds,
            budget=budget,
            staff=Staff(memory=memory, recruits=recruits),
        )
        (search,) = result.operators
        unaccounted = _unaccounted(settings, search_id, set(episodes.proposed))
        return Measured(search, answered(), episodes.answers, unaccounted, peak.peak_bytes)


def _unaccounted(settings: Settings, search_id: str, proposed: set[str]) -> int:
    """As another process finds it."""
    journal = Journal(compilation.journal_path(settings, search_id))
    judged = {entry.candidate.digest for entry in journal.entries()}
    left = ProposalRecord(record_path(settings.searches_dir / search_id))
    explained = {one.candidate.digest for one in left.unjudged(journal, _workloads()) if one.unjudged}
    return len(proposed - judged - explained)


def _workloads() -> tuple[Workload, ...]:
    definition = catalogue.operator("rms_norm")
    return tuple(
        dataclasses.replace(
            inputs.workload(definition, "float32", tokens=tokens, hidden=1024), calls=100, time_ns=10**9
        )
        for tokens in TOKENS
    )


def _profile(hardware: str) -> TrafficProfile:
    window = "2026-12-01T00:00:00+00:00", "2026-12-01T01:00:00+00:00"
    return TrafficProfile("benchmark", "mock", hardware, *window, {}, _workloads(), RequestStatistics(), 0)


def figures(measured: Measured, agents: int) -> list[Figure]:
    """The rows of one run."""
    search = measured.search
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(search.statuses.items()))
    course = f"{search.spent_s:.0f} s, {search.trials} trials ({statuses}), {search.unjudged} left unjudged on record"
    name = f"{agents} agents, a model of {LATENCY_S:g} s"
    gib = measured.peak_bytes / (1 << 30)
    return [
        Figure(
            f"{name}: judge busy",
            ISSUE,
            f"above {LEAST_BUSY:.0%}",
            "%",
            COMMAND,
            round(100 * search.busy_share, 1),
            verdict=_met(search.busy_share > LEAST_BUSY),
            note=f"{course}; for {search.starved_share:.1%} of the time there was nothing to judge and nothing to "
            "compile; the rest is waits for the compiler, which do not count as busy",
        ),
        Figure(
            f"{name}: memory of all processes",
            ISSUE,
            f"under {MOST_GIB:g}",
            "GiB",
            COMMAND,
            round(gib, 3),
            verdict=_met(gib < MOST_GIB),
            note="search, judge, runners, compilers, provider process and the scripted server; pages that are shared "
            "count once",
        ),
        Figure(
            f"{name}: answers lost",
            ISSUE,
            "none",
            f"of {measured.answered}",
            COMMAND,
            float(measured.lost),
            verdict=_met(measured.lost == 0 and measured.answered > 0),
            note=f"{measured.recorded} answers in episodes; every candidate of theirs has a verdict or a reason",
        ),
    ]


def _met(reached: bool) -> Outcome:
    return Outcome.MET if reached else Outcome.MISSED


if __name__ == "__main__":
    sys.exit(main())
