"""Who searches: pattern agents alone without a model; with models, both side by side, led by one strategy."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.brief import Brief
from agents.chat import Answer, ChatRequest, Role, ToolCall
from agents.errors import ModelSettingsError, ModelUnavailableError, PatternError
from agents.memory import CandidateEntry, NoMemory, Recollection, Remembered
from agents.models.configuration import ModelSettings
from agents.models.scripted import Line, ScriptedModel
from gristmill.hardware import Hardware, local_cpu
from kernels.candidate import Candidate, Origin
from tasks import recruitment, search_session
from tasks.bench_session import chosen_models
from tasks.journal import Journal
from tasks.proposal_record import ProposalRecord
from tasks.recruitment import Recruits, Staff, session_for
from tasks.search_session import SearchSession, Trial
from tests.agents.conversation_world import KERNEL, CountedBudget, as_answer, calls, numbered, unredacted
from tests.agents.conversation_world import ListLog as Episodes
from tests.tasks.world import Clock, FormulaBench, ListLog, candidate, rms_norm, timing

WORKLOADS = (rms_norm(1), rms_norm(400))
TUNED = KERNEL.replace(
    "float sums[16] = {};", "constexpr int LANES = 16;  // tune: 4, 8, 16, 32\n    float sums[16] = {};"
)


def brief(operator: str = "rms_norm") -> Brief:
    return Brief(operator, "float32", WORKLOADS, local_cpu(), 2, 20.0, 100.0)


def ratio(candidate: Candidate, workload: object) -> float:
    return 3.0 if candidate.origin.model else 1.5


@pytest.fixture(autouse=True)
def on_the_clock_of_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes where something is judged, so that a search of so many seconds is one of so many trials."""

    class OnClock(SearchSession):
        def __init__(self, bench: FormulaBench, *arguments: object, **options: object) -> None:
            super().__init__(bench, *arguments, clock=bench.clock, **options)

    monkeypatch.setattr(recruitment, "SearchSession", OnClock)


class Search:
    """A search with scripted models on a formula."""

    def __init__(self, folder: Path, script: Callable[[ChatRequest], Line], agents: int = 4, models: int = 1) -> None:
        self.bench = FormulaBench(ratio, Clock())
        self.journal = Journal(folder / "verdicts.jsonl")
        self.episodes = Episodes()
        self.budget = CountedBudget()
        chat = tuple(ScriptedModel(script, f"test/{number}") for number in range(models))
        self.record = ProposalRecord(folder / "proposals.jsonl")
        self.recruits = Recruits(chat, agents, self.budget, self.episodes, unredacted, self.record)

    def run(self, budget_s: float, **staff: object) -> list[Trial]:
        made = Staff(recruits=self.recruits, **staff)
        self.session = session_for(self.bench, brief(), self.journal, ListLog(), made, seed=3)
        return list(self.session.run(budget_s))


def writer(kernel: str = KERNEL) -> Callable[[ChatRequest], Line]:
    """A model that writes another program each time, and uses tools where it has some."""
    numbers = itertools.count()

    def script(request: ChatRequest) -> Line:
        source = numbered(next(numbers), kernel)
        if not request.tools:
            return as_answer(source)
        results = [message for message in request.messages if message.role is Role.TOOL]
        if not results:
            return _call("measure", {"files": {"main.cpp": source}})
        return _call("submit", {"program": "p1"})

    return script


def _call(name: str, arguments: dict[str, object]) -> Answer:
    return calls(ToolCall("call_1", name, json.dumps(arguments)))


def test_without_a_model_pattern_agents_search_alone_and_a_seed_leads_the_same_way(tmp_path: Path) -> None:
    def searched(folder: Path) -> list[str]:
        bench = FormulaBench(ratio, Clock())
        session = session_for(bench, brief(), Journal(folder / "verdicts.jsonl"), ListLog(), Staff(), seed=3)
        return [trial.candidate.digest for trial in session.run(20.0)]

    first, second = searched(tmp_path / "a"), searched(tmp_path / "b")
    assert first == second and len(first) == 20
    none = Search(tmp_path / "c", writer(), agents=0)
    assert [trial.candidate.digest for trial in none.run(20.0)] == first and not none.episodes.episodes


def test_models_and_patterns_work_side_by_side(tmp_path: Path) -> None:
    search = Search(tmp_path, writer(), agents=4, models=2)
    trials = search.run(60.0)
    origins = {trial.candidate.origin.agent for trial in trials}
    assert {f"llm:test/{number % 2}:{number}" for number in range(4)} <= origins
    assert any(agent.startswith("pattern:") for agent in origins)
    with_tools = {e.agent for e in search.episodes.episodes if any(step.tool for step in e.steps)}
    assert with_tools == {"llm:test/0:2", "llm:test/1:3"}, "every other one of each model"
    assert search.budget.in_flight == 0 and search.session.course.departures == []
    written = [e for e in search.episodes.episodes if e.agent.startswith("llm:") and e.pattern]
    assert written and {e.strategy for e in search.episodes.episodes} == {"islands"}
    assert any(episode.parents for episode in search.episodes.episodes), "they build on what was found"


def test_constants_that_a_model_left_open_are_tuned(tmp_path: Path) -> None:
    trials = Search(tmp_path, writer(TUNED), agents=2).run(60.0)
    tuned = [trial.candidate for trial in trials if trial.candidate.origin.agent == "tuning"]
    assert tuned and all(one.origin.model and one.origin.parents for one in tuned)
    assert {int(one.origin.parameters["LANES"]) for one in tuned} <= {4, 8, 16, 32}


@pytest.mark.parametrize("line", ["I cannot help with that.", "```cpp\nint x;\n```", "", ModelUnavailableError("gone")])
def test_a_model_that_writes_junk_leaves_and_the_search_goes_on(tmp_path: Path, line: Line) -> None:
    search = Search(tmp_path, lambda request: line)
    trials = search.run(60.0)
    assert len(trials) == 60 and not any(trial.candidate.origin.model for trial in trials)
    assert all(not gone.trace for gone in search.session.course.departures)
    assert search.budget.in_flight == 0


def test_a_model_alone_writes_what_no_pattern_source_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> list[object]:
        raise PatternError("no pattern writes rms_norm")

    monkeypatch.setattr(recruitment, "pattern_agents", nobody)
    trials = Search(tmp_path / "a", writer()).run(10.0)
    assert len(trials) == 10 and all(trial.candidate.origin.model for trial in trials)
    with pytest.raises(PatternError):
        Search(tmp_path / "b", writer(), agents=0).run(10.0)


class OneMemory(NoMemory):
    """Remembers one program that a model wrote for this hardware."""

    def __init__(self, remembered: Candidate) -> None:
        timings = tuple(timing(workload, 2.5) for workload in WORKLOADS)
        key = local_cpu().key
        entry = CandidateEntry(remembered.digest, "rms_norm", "float32", key, "rows", 2.5, timings, 1)
        self.known = Remembered(remembered, entry)

    def recall(self, operator: str, dtype: str, hardware: Hardware) -> Recollection:
        return Recollection(operator, dtype, hardware.key, candidates=(self.known,))


def test_what_a_model_wrote_in_an_earlier_search_is_judged_first(tmp_path: Path) -> None:
    old = Candidate(**{**vars(candidate(77)), "origin": Origin("llm:old", "rows", model="test/old")})
    search = Search(tmp_path, writer(), agents=1)
    trials = search.run(12.0, memory=OneMemory(old))
    assert old.digest in [trial.candidate.digest for trial in trials[:4]]
    again = Search(tmp_path, writer(), agents=1)
    replayed = again.run(14.0, memory=OneMemory(old))
    assert sum(trial.candidate.digest == old.digest for trial in replayed) == 1


def test_a_search_ends_although_a_model_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_session, "ENDING_S", 0.05)
    release = threading.Event()

    def silent(request: ChatRequest) -> Line:
        assert release.wait(60)
        return "too late"

    search = Search(tmp_path, silent)
    assert len(search.run(5.0)) == 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("agent ")]
    assert search.budget.in_flight == 0 and {e.outcome.value for e in search.episodes.episodes} == {"failed"}
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("call "):
            thread.join(20)


def test_models_are_chosen_by_name_and_then_stand_alone() -> None:
    configured = (ModelSettings("openai/a", 50, fallbacks=("openai/b",)), ModelSettings("openai/b"))
    assert chosen_models(configured, ()) == configured
    assert chosen_models(configured, ("openai/a", "openai/b", "openai/a")) == (
        ModelSettings("openai/a", 50),
        ModelSettings("openai/b"),
    )
    fallback = (ModelSettings("openai/a", fallbacks=("openai/c",)),)
    assert chosen_models(fallback, ("openai/c",)) == (ModelSettings("openai/c"),), "named among the fallbacks"
    assert chosen_models((), ("openai/c",)) == (ModelSettings("openai/c"),), "nothing is configured"


def test_a_mistyped_model_is_refused_with_the_configured_ones() -> None:
    with pytest.raises(ModelSettingsError, match=r"'openai/aa' is not configured; expected one of openai/a, openai/b"):
        chosen_models((ModelSettings("openai/a"), ModelSettings("openai/b")), ("openai/aa",))


@pytest.mark.parametrize("name", ["", " ", "openai/a b", "openai/\n", "openai/\u0430"])
def test_what_is_no_name_of_a_model_is_refused_also_where_none_is_configured(name: str) -> None:
    with pytest.raises(ModelSettingsError, match="expected a model as litellm names it"):
        chosen_models((), (name,))


def test_who_can_write_what(tmp_path: Path) -> None:
    """Language models anything, pattern agents what they have sources for: rotary embeddings side by side are not."""
    unwritten = "rotary_embedding-rotary_embedding"
    assert Staff().can_write("silu_and_mul+skinny_linear", "float32") and not Staff().can_write(unwritten, "float32")
    for models, agents in ((1, 1), (0, 1), (1, 0)):
        staff = Staff(recruits=Search(tmp_path, writer(), agents=agents, models=models).recruits)
        assert staff.can_write(unwritten, "float32") == staff.asks_models == bool(models and agents)
