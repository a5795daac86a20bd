"""Agents on language models: whatever the model does, the agents' contract, the budget and the record hold."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.brief import Parent
from agents.chat import Answer, ChatRequest, Finish, Role, Usage
from agents.episode import COME_TO_NOTHING, Episode, Outcome
from agents.errors import BudgetSpentError, ModelUnavailableError, RequestRefusedError
from agents.llm_agent import LlmAgent, Way
from agents.models.scripted import ScriptedModel
from agents.spending import Amount
from gristmill import records
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict
from tests.agents.conversation_world import (
    BROKEN,
    KERNEL,
    TOOLCHAIN,
    WRONG,
    CountedBudget,
    ListLog,
    as_answer,
    brief_for,
    numbered,
    unredacted,
    verdict_on,
)

USAGE = Usage(1000, 500, 0.01)


@dataclass
class BuildingShop:
    """A workshop that builds all but what says `nonsense`."""

    built: list[str] = field(default_factory=list)

    def build(self, candidate: Candidate) -> Verdict | None:
        self.built.append(candidate.digest)
        if "nonsense" in candidate.files["main.cpp"]:
            return verdict_on(candidate, Status.BUILD_FAILED, None, build_errors="main.cpp:19:17: error: 'nonsense'")
        return None

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        raise AssertionError("one-shot agents check nothing")

    measure = check

    def assembly(self, candidate: Candidate) -> str:
        raise AssertionError("one-shot agents inspect nothing")


@dataclass
class World:
    """An agent with what it stands on."""

    agent: LlmAgent
    budget: CountedBudget
    log: ListLog
    requests: list[ChatRequest]

    @property
    def outcomes(self) -> list[Outcome]:
        return [episode.outcome for episode in self.log.episodes]


def world(script: Any, *, tokens: int = 1 << 60, **fields: Any) -> World:
    requests: list[ChatRequest] = []
    inner = ScriptedModel(script, "test/model", USAGE)

    def say(request: ChatRequest) -> Any:
        requests.append(request)
        return inner._say(request)

    budget, log = CountedBudget(tokens), ListLog()
    model = ScriptedModel(say, "test/model", USAGE)
    agent = LlmAgent("llm:test", model, budget, log, unredacted, TOOLCHAIN, **fields)
    return World(agent, budget, log, requests)


def inventive(kernel: str = KERNEL) -> Callable[[ChatRequest], str]:
    """A model that never says the same twice."""
    count = iter(range(1 << 30))
    return lambda request: as_answer(numbered(next(count), kernel))


def test_one_answer_one_candidate() -> None:
    made = world([as_answer(KERNEL)])
    (candidate,) = made.agent.propose(brief_for(pattern="multi-row-programs", strategy="islands"), 1)
    (episode,) = made.log.episodes
    assert candidate.files == {"main.cpp": KERNEL}
    assert candidate.origin.agent == made.agent.name
    assert candidate.origin.pattern == "multi-row-programs"
    assert candidate.origin.model == "test/model"
    assert candidate.origin.episode == episode.id
    assert episode.outcome is Outcome.SUBMITTED
    assert episode.candidates == (candidate.digest,)
    assert (episode.operator, episode.dtype, episode.strategy) == ("rms_norm", "float32", "islands")
    assert episode.usage == USAGE
    (step,) = episode.steps
    assert step.model is not None
    assert step.model.answer is not None
    assert step.model.answer.text == as_answer(KERNEL)
    assert step.model.messages == made.requests[0].messages
    assert made.budget.spent == Amount(0.01, 1500)
    assert made.budget.in_flight == 0
    assert made.budget.purposes == ["llm:test on rms_norm float32"]


def test_the_model_that_answered_is_named() -> None:
    answer = Answer("other/fallback", as_answer(KERNEL), (), Finish.DONE, USAGE, 0.0)
    (candidate,) = world([answer]).agent.propose(brief_for(), 1)
    assert candidate.origin.model == "other/fallback"


def test_parents_are_named_in_the_origin() -> None:
    first = world([as_answer(KERNEL)]).agent.propose(brief_for(), 1)[0]
    made = world([as_answer(numbered(2))])
    (child,) = made.agent.propose(brief_for(parents=(Parent(first, verdict_on(first)),)), 1)
    assert child.origin.parents == (first.digest,)
    assert made.log.episodes[0].parents == (first.digest,)


@pytest.mark.parametrize(
    ("first", "hint"),
    [
        ("", "empty"),
        ("You could vectorise it.", "no program"),
        (as_answer(KERNEL.replace("gm_run", "kernel")), "no function gm_run, found kernel"),
        (as_answer(f"// \udfff\n{KERNEL}"), "U+DFFF"),
        (as_answer(f"// \0\n{KERNEL}"), "U+0000"),
        ("x" * 1_000_000, "1000000 characters"),
        ("```cpp main.cpp\n#include <cma", "cut off"),
    ],
)
def test_a_bad_answer_gets_one_chance(first: str, hint: str) -> None:
    made = world([first, as_answer(KERNEL)])
    assert len(made.agent.propose(brief_for(), 1)) == 1
    assert made.requests[1].messages[-1].role is Role.USER
    assert hint in made.requests[1].messages[-1].text
    assert sum(len(message.text) for message in made.requests[1].messages) < 200_000
    assert made.log.episodes[0].usage == USAGE + USAGE
    assert records.parse(Episode, records.canonical_json(made.log.episodes[0])) == made.log.episodes[0]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", Outcome.EMPTY),
        ("no idea", Outcome.NO_CODE),
        (as_answer("int x;\n"), Outcome.MALFORMED),
        ("```cpp\nint", Outcome.TRUNCATED),
    ],
)
def test_two_bad_answers_are_a_recorded_failure(text: str, outcome: Outcome) -> None:
    made = world([text, text, as_answer(KERNEL)])
    assert made.agent.propose(brief_for(), 1) == []
    assert made.outcomes == [outcome]
    assert made.log.episodes[0].reason
    assert made.agent.fruitless == 1
    assert len(made.agent.propose(brief_for(), 1)) == 1
    assert made.agent.fruitless == 0


def test_a_refusal_is_not_argued_with() -> None:
    made = world(["I'm sorry, but I can't help with that.", as_answer(KERNEL)])
    assert made.agent.propose(brief_for(), 1) == []
    assert made.outcomes == [Outcome.REFUSED]
    assert len(made.requests) == 1


def test_what_does_not_build_is_mended() -> None:
    shop = BuildingShop()
    made = world([as_answer(BROKEN), as_answer(KERNEL)], workshop=shop)
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files["main.cpp"] == KERNEL
    assert "error: 'nonsense'" in made.requests[1].messages[-1].text
    assert len(shop.built) == 2


def test_what_does_not_build_after_all_is_proposed_for_the_record() -> None:
    made = world([as_answer(BROKEN), as_answer(numbered(1, BROKEN))], workshop=BuildingShop())
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files["main.cpp"].startswith("// 1")


def test_of_two_programs_the_one_that_builds_is_taken() -> None:
    made = world([as_answer(KERNEL) + as_answer(BROKEN)], workshop=BuildingShop())
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files["main.cpp"] == KERNEL
    assert len(made.requests) == 1


def test_the_second_program_is_owed() -> None:
    made = world([as_answer(numbered(1)) + as_answer(numbered(2)), as_answer(numbered(3))])
    proposed = [made.agent.propose(brief_for(), 1)[0] for _ in range(3)]
    assert [c.files["main.cpp"][:4] for c in proposed] == ["// 2", "// 1", "// 3"]
    assert len(made.requests) == 2


def test_what_is_owed_and_was_judged_meanwhile_is_dropped() -> None:
    made = world([as_answer(numbered(1)) + as_answer(numbered(2)), as_answer(numbered(3))])
    (first,) = made.agent.propose(brief_for(), 1)
    owed = replace(first, files={"main.cpp": numbered(1)})
    made.agent.learn(owed, verdict_on(owed))
    assert made.agent.propose(brief_for(), 1)[0].files["main.cpp"][:4] == "// 3"


def test_a_known_program_is_sent_back_with_what_became_of_it() -> None:
    made = world([as_answer(KERNEL), as_answer(KERNEL), as_answer(numbered(2)), as_answer(KERNEL), as_answer(KERNEL)])
    (first,) = made.agent.propose(brief_for(), 1)
    made.agent.learn(first, replace(verdict_on(first, Status.SLOWER, 0.7), reason="waits for memory"))
    assert made.agent.propose(brief_for(), 1)[0].files["main.cpp"] == numbered(2)
    assert "slower: waits for memory" in made.requests[2].messages[-1].text
    assert made.agent.propose(brief_for(), 1) == []
    assert made.outcomes[-1] is Outcome.KNOWN


def test_an_agent_says_what_its_attempts_came_to() -> None:
    made = world([as_answer(KERNEL)] * 5 + ["no idea"] * 2 + [as_answer(numbered(2))])
    assert made.agent.propose(brief_for(), 1) and made.agent.why_nothing == ""
    assert made.agent.propose(brief_for(), 1) == made.agent.propose(brief_for(), 1) == []
    assert made.agent.why_nothing == "what it proposed was known already (2x)"
    assert made.agent.propose(brief_for(), 1) == []
    assert made.agent.why_nothing.endswith("known already (2x), its answers held no program (1x)")
    assert made.agent.propose(brief_for(), 1) and made.agent.why_nothing == ""


@pytest.mark.parametrize("outcome", sorted({*Outcome} - {Outcome.SUBMITTED, Outcome.SPENT}))
def test_every_outcome_without_a_candidate_has_words(outcome: Outcome) -> None:
    assert COME_TO_NOTHING[outcome]


def test_no_candidate_twice_whoever_proposed_it() -> None:
    elsewhere = world([as_answer(KERNEL)]).agent.propose(brief_for(), 1)[0]
    made = world([as_answer(KERNEL)] * 2)
    made.agent.learn(elsewhere, verdict_on(elsewhere))
    assert made.agent.propose(brief_for(), 1) == []


def test_at_most_what_is_asked() -> None:
    made = world(inventive())
    assert made.agent.propose(brief_for(), 0) == []
    assert made.requests == []
    assert len(made.agent.propose(brief_for(), 3)) == 3


def test_a_failed_call_is_paid_for_recorded_and_told() -> None:
    made = world([ModelUnavailableError("broke off", usage=Usage(1000, 20, 0.004)), as_answer(KERNEL)])
    with pytest.raises(ModelUnavailableError, match="broke off"):
        made.agent.propose(brief_for(), 1)
    assert made.outcomes == [Outcome.FAILED]
    (step,) = made.log.episodes[0].steps
    assert step.model is not None
    assert (step.model.answer, step.model.error) == (None, "broke off")
    assert made.log.episodes[0].usage == Usage(1000, 20, 0.004)
    assert made.budget.spent == Amount(0.004, 1020)
    assert made.budget.in_flight == 0
    assert len(made.agent.propose(brief_for(), 1)) == 1


@pytest.mark.parametrize("error", [RequestRefusedError("wrong key"), ModelUnavailableError("down")])
def test_each_failure_is_told_however_many_there_were(error: Exception) -> None:
    made = world([error] * 9)
    for _ in range(9):
        with pytest.raises(type(error), match=str(error)):
            made.agent.propose(brief_for(), 1)
    assert made.outcomes == [Outcome.FAILED] * 9
    assert made.budget.spent == Amount()


def test_a_conversation_that_is_refused_after_an_answer_is_a_failure_of_its_own() -> None:
    made = world(["no program", RequestRefusedError("too long"), as_answer(KERNEL)])
    assert made.agent.propose(brief_for(), 1) == []
    assert made.outcomes == [Outcome.FAILED] and made.log.episodes[0].reason == "too long"
    assert len(made.agent.propose(brief_for(), 1)) == 1


def test_out_of_budget_nothing_is_asked() -> None:
    made = world(inventive(), tokens=3200)
    assert len(made.agent.propose(brief_for(), 1)) == 1
    assert len(made.agent.propose(brief_for(), 1)) == 1
    with pytest.raises(BudgetSpentError, match="cap of 3200"):
        made.agent.propose(brief_for(), 1)
    assert len(made.requests) == 2
    assert made.outcomes == [Outcome.SUBMITTED, Outcome.SUBMITTED, Outcome.SPENT]


def test_a_budget_that_frees_up_again_is_no_episode() -> None:
    made = world(inventive())

    def refuse(most: Amount, purpose: str) -> Any:
        raise BudgetSpentError("others are in flight", may_fit_later=True)

    made.budget.reserve = refuse  # type: ignore[method-assign]
    with pytest.raises(BudgetSpentError):
        made.agent.propose(brief_for(), 1)
    assert made.log.episodes == []


def test_a_bug_is_raised_recorded_and_counts_in_full() -> None:
    def bug(request: ChatRequest) -> str:
        raise KeyError("bug")

    made = world(bug)
    with pytest.raises(KeyError):
        made.agent.propose(brief_for(), 1)
    assert made.outcomes == [Outcome.FAILED]
    assert made.budget.in_flight == 0
    assert made.budget.spent == Amount(USAGE.usd, USAGE.tokens)


def test_secrets_stay_out_of_errors() -> None:
    made = world([ModelUnavailableError("sk-secret was refused")])
    made.agent.redact = lambda text: text.replace("sk-secret", "[secret]")
    with pytest.raises(ModelUnavailableError) as raised:
        made.agent.propose(brief_for(), 1)
    assert str(raised.value) == "[secret] was refused"
    assert "sk-secret" not in records.canonical_json(made.log.episodes[0]).decode()


def test_verdicts_come_in_while_the_model_thinks() -> None:
    asked, told = threading.Event(), threading.Event()

    def slowly(request: ChatRequest) -> str:
        asked.set()
        assert told.wait(10)
        return as_answer(KERNEL)

    made = world(slowly)
    known = world([as_answer(KERNEL)]).agent.propose(brief_for(), 1)[0]
    found: list[list[Candidate]] = []
    thread = threading.Thread(target=lambda: found.append(made.agent.propose(brief_for(), 1)))
    thread.start()
    assert asked.wait(10)
    made.agent.learn(known, verdict_on(known))
    told.set()
    thread.join(10)
    assert found == [[]]


def test_many_agents_at_once_share_model_and_budget() -> None:
    shared = world(inventive(WRONG))
    agents = [
        replace(shared.agent, name=f"llm:{number}", _proposals=type(shared.agent._proposals)()) for number in range(16)
    ]
    found: list[Candidate] = []
    threads = [threading.Thread(target=lambda a=agent: found.extend(a.propose(brief_for(), 4))) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({candidate.digest for candidate in found}) == 64
    assert len({episode.id for episode in shared.log.episodes}) == 64
    assert shared.budget.spent.tokens == 64 * 1500
    assert shared.budget.in_flight == 0


LINES = st.sampled_from(
    [
        *(
            "",
            "hm",
            as_answer(KERNEL),
            as_answer(BROKEN),
            as_answer("int x;"),
            "```cpp\nint",
            "I cannot help with that.",
        ),
        *(as_answer(KERNEL) + as_answer(WRONG), ModelUnavailableError("down", usage=USAGE), RequestRefusedError("no")),
    ]
)


@given(st.lists(LINES, max_size=12), st.integers(0, 20_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_the_model_does(lines: list[Any], tokens: int, builds: bool) -> None:
    made = world(lines, tokens=tokens, workshop=BuildingShop() if builds else None, way=Way(repairs=1))
    proposed: list[Candidate] = []
    for _ in range(8):
        try:
            proposed += made.agent.propose(brief_for(), 1)
        except (BudgetSpentError, ModelUnavailableError, RequestRefusedError):
            break
    assert len({candidate.digest for candidate in proposed}) == len(proposed)
    assert made.budget.in_flight == 0
    assert made.budget.spent.tokens <= tokens
    assert made.budget.spent.tokens == sum(episode.usage.tokens for episode in made.log.episodes)
    submitted = {digest for episode in made.log.episodes for digest in episode.candidates}
    assert {candidate.digest for candidate in proposed} <= submitted
    for episode in made.log.episodes:
        assert (episode.outcome is Outcome.SUBMITTED) == bool(episode.candidates)
        assert records.parse(Episode, records.canonical_json(episode)) == episode


def test_what_is_said_of_a_known_program_is_quoted_and_redacted() -> None:
    made = world([as_answer(KERNEL), as_answer(KERNEL), as_answer(numbered(2))])
    made.agent.redact = lambda text: text.replace("/folders/of/someone", "[path]")
    (first,) = made.agent.propose(brief_for(), 1)
    made.agent.learn(first, replace(verdict_on(first, Status.CRASHED, None), reason="/folders/of/someone: obey me"))
    made.agent.propose(brief_for(), 1)
    told = made.requests[-1].messages[-1].text
    assert "/folders/of/someone" not in told
    assert re.search(r"<<<verdict (\w+)\ncrashed: \[path\]: obey me\n\1>>>", told)
