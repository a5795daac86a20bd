"""Models at work with tools: calls are done or explained, turns and results are bounded, nothing good is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.chat import Answer, ChatRequest, Finish, Role, ToolCall, Usage
from agents.episode import Episode, Outcome
from agents.errors import BudgetSpentError, ModelUnavailableError
from agents.llm_agent import LlmAgent, Way
from agents.models.scripted import ScriptedModel
from agents.tool_loop import CUT_OFF, LAST_TURN, MAX_CALLS
from agents.tools import MAX_ARGUMENTS, MAX_RESULT
from gristmill import records
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Mismatch, Status, Verdict
from tests.agents.conversation_world import (
    BROKEN,
    KERNEL,
    TOOLCHAIN,
    WORKLOADS,
    WRONG,
    CountedBudget,
    ListLog,
    as_answer,
    brief_for,
    calls,
    numbered,
    unredacted,
    verdict_on,
)

USAGE = Usage(100, 50, 0.001)
TOOLS = {"read_definition", "build", "check", "measure", "inspect_assembly", "search_memory", "submit"}


@dataclass
class FakeShop:
    """Judges by what a source says; keeps what it was asked."""

    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    ratio: float = 2.0

    def build(self, candidate: Candidate) -> Verdict | None:
        self.asked.append(("build", ()))
        broken = "nonsense" in candidate.files["main.cpp"]
        return verdict_on(candidate, Status.BUILD_FAILED, None, build_errors="19: 'nonsense'") if broken else None

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        return self._judge("check", candidate, workloads)

    def measure(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        return self._judge("measure", candidate, workloads)

    def assembly(self, candidate: Candidate) -> str:
        self.asked.append(("assembly", ()))
        return "vfmadd231ps zmm0, zmm1, zmm2\n" * 2000

    def _judge(self, tool: str, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        self.asked.append((tool, tuple(workload.label for workload in workloads)))
        if "* weight[h]" not in candidate.files["main.cpp"]:
            wrong = Mismatch(WORKLOADS[0].label, "out_TH", (0, 0), "1", "2", "9", 512, 512, "all")
            return verdict_on(candidate, Status.INCORRECT, None, mismatches=(wrong,))
        number = candidate.files["main.cpp"].partition("\n")[0].removeprefix("// ")
        return verdict_on(candidate, ratio=float(number) if number.isdigit() else self.ratio)


@dataclass
class Recalled:
    """A memory of one line."""

    queries: list[str] = field(default_factory=list)

    def search(self, query: str, limit: int = 8) -> tuple[str, ...]:
        self.queries.append(query)
        return ("rows-in-registers: 2.5x on short rows",) if "rows" in query else ()


@dataclass
class World:
    agent: LlmAgent
    shop: FakeShop
    budget: CountedBudget
    log: ListLog
    requests: list[ChatRequest]
    memory: Recalled

    def results(self) -> list[str]:
        """What tools said in the last episode."""
        return [step.tool.result for step in self.log.episodes[-1].steps if step.tool is not None]


def world(*script: Any, turns: int = 8, tokens: int = 1 << 60) -> World:
    requests: list[ChatRequest] = []
    inner = ScriptedModel(script, "test/model", USAGE)

    def say(request: ChatRequest) -> Any:
        requests.append(request)
        return inner._say(request)

    shop, budget, log, memory = FakeShop(), CountedBudget(tokens), ListLog(), Recalled()
    agent = LlmAgent(
        *("llm:test", ScriptedModel(say, "test/model", USAGE), budget, log, unredacted, TOOLCHAIN, shop),
        memory=memory,  # type: ignore[arg-type]
        way=Way(use_tools=True, turns=turns),
    )
    return World(agent, shop, budget, log, requests, memory)


def call(tool: str, _id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(_id, tool, json.dumps(arguments))


def one(tool: str, **arguments: Any) -> Answer:
    return calls(call(tool, **arguments), usage=USAGE)


def files(kernel: str = KERNEL) -> dict[str, str]:
    return {"main.cpp": kernel}


def test_from_a_wrong_program_to_a_right_one() -> None:
    made = world(
        one("read_definition"),
        one("build", files=files(BROKEN)),
        one("build", files=files(WRONG)),
        one("check", program="p2"),
        one("check", files=files(KERNEL)),
        one("measure", program="p3", workloads=[1]),
        one("submit", program="p3"),
    )
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files == files()
    assert candidate.origin.model == "test/model"
    told = made.results()
    assert "mean_square_T1" in told[0]
    assert "p1 does not build" in told[1]
    assert "'nonsense'" in told[1]
    assert told[2] == "p2 builds."
    assert "incorrect" in told[3]
    assert "out_TH of rms_norm" in told[3]
    assert "p3 was judged" in told[4]
    assert made.shop.asked[-1] == ("measure", (sorted(workload.label for workload in WORKLOADS)[0],))
    (episode,) = made.log.episodes
    assert episode.outcome is Outcome.SUBMITTED
    assert episode.candidates == (candidate.digest,)
    assert episode.usage.tokens == 7 * 150 == made.budget.spent.tokens
    assert [bool(step.model) for step in episode.steps] == [True, False] * 7
    assert records.parse(Episode, records.canonical_json(episode)) == episode
    assert {tool.name for tool in made.requests[0].tools} == TOOLS


def test_the_conversation_is_as_providers_want_it() -> None:
    """Every tool call is answered by its id before anything else is said."""
    made = world(
        calls(call("build", "a", files=files(WRONG)), call("nothing", "b"), usage=USAGE),
        "Now I know.",
        one("submit", files=files()),
        turns=3,
    )
    made.agent.propose(brief_for(), 1)
    roles = [message.role for message in made.requests[-1].messages]
    assert roles == [
        *(Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL),
        *(Role.ASSISTANT, Role.USER, Role.USER),
    ]
    assert [message.tool_call_id for message in made.requests[-1].messages[3:5]] == ["a", "b"]
    assert made.requests[-1].messages[-1].text == LAST_TURN


def test_calls_have_ids_of_their_own_whatever_a_server_calls_them() -> None:
    turn = calls(*(ToolCall(given, "read_definition", "{}") for given in ("call_1", "", "call_3_2", "\n")))
    made = world(turn, turn, turn, turns=3)
    made.agent.propose(brief_for(), 1)
    told = [m.tool_call_id for m in made.requests[-1].messages if m.role is Role.TOOL]
    asked = [c.id for m in made.requests[-1].messages for c in m.tool_calls]
    assert told == asked and len(set(told)) == len(told) == 8


@pytest.mark.parametrize(
    ("made_call", "hint"),
    [
        (call("compile", files=files()), "no tool 'compile'; there are read_definition, build"),
        (ToolCall("c", "build", "{files"), "no JSON"),
        (ToolCall("c", "build", "[" * 200_000), "no JSON"),
        (ToolCall("c", "build", "[]"), "not of type 'object'"),
        (ToolCall("c", "build", ""), "either files or the name"),
        (ToolCall("c", "build", '{"files": {"main.cpp": "\\ud800 gm_run("}}'), "U+D800"),
        (ToolCall("c", "build", json.dumps({"files": {"main.cpp": "x" * MAX_ARGUMENTS}})), "at most"),
        (call("build", files={}), "files"),
        (call("build", files={"main.cpp": 7}), "files['main.cpp']"),
        (call("build", files=files(), program="p1"), "either files or the name"),
        (call("build", program="p7"), "there is no program 'p7'; there are none"),
        (call("build", files={"kernel.cpp": KERNEL}), "expected exactly one of main.cpp or main.py"),
        (call("build", files=files("int x;")), "no function gm_run"),
        (call("build", files=files(), domain={"tokens": {"low": 1}}), "'high' is a required property"),
        (call("build", files=files(), domain={"batch": {"low": 1, "high": 2}}), "no axis 'batch'"),
        (call("build", files=files(), speed=9), "speed"),
        (call("check", files=files(), workloads=[9]), "there is no workload 9; they are numbered from 1 to 3"),
        (call("check", files=files(), workloads=[0]), "workloads"),
        (call("check", files=files(), workloads=[2.0]), "p1 was judged"),
        (ToolCall("c", "check", '{"files": ' + "[" * 900 + "]" * 900 + "}"), "not as expected"),
        (call("build", files={"\ud800": KERNEL}), "cannot be used"),
        (call("search_memory"), "query"),
        (call("search_memory", query="unheard of"), "Nothing is known"),
        (call("search_memory", query="short rows"), "2.5x on short rows"),
        (call("functions.build", files=files()), "p1 builds"),
    ],
)
def test_calls_are_explained(made_call: ToolCall, hint: str) -> None:
    made = world(calls(made_call, usage=USAGE), one("submit", files=files()))
    assert len(made.agent.propose(brief_for(), 1)) == 1
    assert hint in made.results()[0]


def test_results_are_bounded() -> None:
    made = world(one("inspect_assembly", files=files()), one("submit", program="p1"))
    made.agent.propose(brief_for(), 1)
    assert "vfmadd231ps" in made.results()[0]
    assert "characters cut here" in made.results()[0]
    assert len(made.results()[0]) <= MAX_RESULT + 100


def test_calls_per_turn_are_bounded() -> None:
    many = [call("build", str(number), files=files(numbered(number))) for number in range(MAX_CALLS + 3)]
    made = world(calls(*many, usage=USAGE), one("submit", program="p1"))
    made.agent.propose(brief_for(), 1)
    assert len([tool for tool, _ in made.shop.asked if tool == "build"]) == MAX_CALLS
    assert made.results()[MAX_CALLS].startswith("Not done")


def test_the_same_question_is_asked_once() -> None:
    made = world(
        one("check", files=files()),
        one("check", files=files()),
        one("check", program="p1", workloads=[3, 2, 1, 1]),
        one("check", program="p1", workloads=[1, 2, 3]),
        one("submit", program="p1"),
    )
    made.agent.propose(brief_for(), 1)
    assert len(made.shop.asked) == 2
    assert made.results()[0] == made.results()[1] == made.results()[3]


def test_an_answer_with_a_program_is_handed_in() -> None:
    made = world("Let me think first.", as_answer(KERNEL))
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files == files()


def test_out_of_turns_the_best_correct_program_is_handed_in() -> None:
    script = [one("check", files=files(numbered(number))) for number in (2, 7, 3)] + [one("check", files=files(WRONG))]
    made = world(*script, turns=4)
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files["main.cpp"].startswith("// 7")
    assert "within 4 turns; the best program so far was taken" in made.log.episodes[0].reason
    assert made.requests[-1].messages[-1].text == LAST_TURN


def test_out_of_turns_without_a_correct_program() -> None:
    made = world(*[one("check", files=files(WRONG))] * 3, turns=3)
    assert made.agent.propose(brief_for(), 1) == []
    assert made.log.episodes[0].outcome is Outcome.GAVE_UP


REFUSALS = [replace(one("check", files=files(WRONG)), finish=Finish.REFUSED), "I'm sorry, I can't go on with this."]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["by the filter", "in words"])
def test_a_refusal_ends_the_work_but_what_was_found_before_is_handed_in(refusal: Any) -> None:
    made = world(one("check", files=files()), refusal)
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files == files() and len(made.shop.asked) == 1
    assert "refused" in made.log.episodes[0].reason
    assert world(refusal).agent.propose(brief_for(), 1) == []


def test_a_call_that_was_cut_off_is_told_so() -> None:
    cut = ToolCall("c1", "build", '{"files": {"main.cpp": "int x')
    made = world(replace(calls(cut, usage=USAGE), finish=Finish.LENGTH), as_answer(KERNEL))
    assert len(made.agent.propose(brief_for(), 1)) == 1
    assert made.results()[0].endswith(CUT_OFF) and "no JSON" in made.results()[0]


@pytest.mark.parametrize("tokens", [450, 1 << 60])
def test_nothing_good_is_lost_when_budget_or_provider_end(tokens: int) -> None:
    made = world(one("check", files=files()), one("build", program="p1"), one("build", program="p1"), tokens=tokens)
    (candidate,) = made.agent.propose(brief_for(), 1)
    assert candidate.files == files()
    assert made.budget.in_flight == 0


def test_without_a_correct_program_they_end_the_episode() -> None:
    made = world(one("check", files=files(WRONG)), tokens=200)
    with pytest.raises(BudgetSpentError):
        made.agent.propose(brief_for(), 1)
    assert made.log.episodes[0].outcome is Outcome.SPENT
    made = world(one("check", files=files(WRONG)), ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError, match="down"):
        made.agent.propose(brief_for(), 1)
    assert made.log.episodes[0].outcome is Outcome.FAILED


@pytest.mark.parametrize("again", [one("submit", files=files()), as_answer(KERNEL)], ids=["submitted", "answered"])
def test_who_hands_in_a_known_program_until_the_end_is_told_apart(again: Any) -> None:
    made = world(one("submit", files=files()), *[again] * 3, turns=3)
    assert made.agent.propose(brief_for(), 1)
    assert made.agent.propose(brief_for(), 1) == []
    assert made.log.episodes[-1].outcome is Outcome.KNOWN
    assert made.agent.why_nothing == "what it proposed was known already (1x)"


def test_a_known_program_cannot_be_submitted() -> None:
    made = world(one("submit", files=files()), one("submit", files=files()), one("submit", files=files(numbered(2))))
    (first,) = made.agent.propose(brief_for(), 1)
    made.agent.learn(first, verdict_on(first, Status.SLOWER, 0.5))
    (second,) = made.agent.propose(brief_for(), 1)
    assert second.files["main.cpp"].startswith("// 2")
    assert "p1 was proposed before" in made.results()[0] and "slower: made up slower" in made.results()[0]


def test_a_known_program_is_not_what_is_fallen_back_to() -> None:
    made = world(one("submit", files=files()), one("check", files=files()), turns=1)
    (first,) = made.agent.propose(brief_for(), 1)
    made.agent.learn(first, verdict_on(first))
    assert made.agent.propose(brief_for(), 1) == []


def test_what_became_known_by_measuring_can_be_submitted() -> None:
    """A measurement of all workloads is a trial of its own: the search tells its verdict to every agent."""
    made = world(one("measure", files=files()), one("submit", program="p1"))
    measure = made.shop.measure

    def and_tell(candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        verdict = measure(candidate, workloads)
        made.agent.learn(candidate, verdict)
        return verdict

    made.shop.measure = and_tell  # type: ignore[method-assign]
    made.agent.propose(brief_for(), 1)
    assert made.log.episodes[0].outcome is Outcome.SUBMITTED


def test_a_talk_without_end_ends() -> None:
    made = world(*["blah " * 20_000] * 30, turns=30)
    assert made.agent.propose(brief_for(), 1) == []
    assert made.log.episodes[0].outcome is Outcome.GAVE_UP
    assert "too long" in made.log.episodes[0].reason
    assert len(made.requests) < 12


def test_without_tools_the_same_agent_asks_for_an_answer() -> None:
    made = world(as_answer(KERNEL))
    made.agent.way = Way(use_tools=False)
    assert len(made.agent.propose(brief_for(), 1)) == 1
    assert made.requests[0].tools == ()
    assert "use the tools" not in made.requests[0].messages[0].text


ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["p1", KERNEL, WRONG, "main.cpp", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["files", "program", "workloads", "query", "main.cpp", "domain", "layout", "parameters", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
RANDOM_CALL = st.builds(
    ToolCall,
    st.text(max_size=3),
    st.sampled_from([*TOOLS, "x", ""]),
    ARGUMENTS.map(json.dumps) | st.text(max_size=20),
)


@given(st.lists(st.lists(RANDOM_CALL, max_size=3) | st.text(max_size=30), max_size=6))
@settings(max_examples=80, deadline=None)
def test_whatever_is_called(script: list[Any]) -> None:
    said = [
        Answer("m", line, (), Finish.DONE, USAGE, 0.0) if isinstance(line, str) else calls(*line, usage=USAGE)
        for line in script
    ]
    made = world(*said, turns=6)
    proposed: list[Candidate] = []
    with contextlib.suppress(ModelUnavailableError):  # the script has ended
        proposed = made.agent.propose(brief_for(), 1)
    (episode,) = made.log.episodes
    assert (episode.outcome is Outcome.SUBMITTED) == bool(proposed)
    assert made.budget.in_flight == 0
    assert records.parse(Episode, records.canonical_json(episode)) == episode
    for request in made.requests:
        waiting: list[str] = []
        for message in request.messages:
            if message.role is Role.TOOL:
                assert waiting.pop(0) == message.tool_call_id
            else:
                assert waiting == []
            waiting += [made_call.id for made_call in message.tool_calls]
            for made_call in message.tool_calls:
                assert made_call.name
                arguments = json.loads(made_call.arguments)
                assert isinstance(arguments, dict)
                assert json.dumps(arguments, ensure_ascii=False).encode()
        ids = [made_call.id for message in request.messages for made_call in message.tool_calls]
        assert len(ids) == len(set(ids))
