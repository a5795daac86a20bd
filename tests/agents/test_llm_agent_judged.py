"""Language model agents before the real judge: what they propose is built, checked and timed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agents.assignment import Toolchain
from agents.brief import Parent
from agents.chat import Answer, ChatRequest, ToolCall
from agents.episode import Outcome
from agents.llm_agent import LlmAgent, Way
from agents.models.scripted import ScriptedModel
from agents.redaction import Redactor
from agents.tuning_agent import TuningAgent
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from harness.builder import ALLOWED_FLAGS, BASE_FLAGS
from harness.judge import Judge
from harness.policy import JudgePolicy
from harness.timing import StopRule
from kernels.candidate import Candidate
from kernels.roofline import Peaks
from kernels.verdict import Status, Verdict
from tests.agents.conversation_world import (
    BROKEN,
    KERNEL,
    WORKLOADS,
    WRONG,
    CountedBudget,
    ListLog,
    as_answer,
    brief_for,
    calls,
)

POLICY = JudgePolicy(
    stop=StopRule(min_pairs=5, max_pairs=5, budget_s=5.0, tolerance=0.5, margin=0.5),
    min_gain=0.05,
    batch_ns=3e5,
    deadline_s=5.0,
    regimes_per_workload=1,
)
RATES = {"float32": 1e6, "bfloat16": 1e6}
TOOLCHAIN = Toolchain(BASE_FLAGS, tuple(sorted(ALLOWED_FLAGS)))


@dataclass
class JudgedShop:
    """The judge as a workshop, one caller at a time."""

    judge: Judge
    lock: threading.Lock = field(default_factory=threading.Lock)

    def build(self, candidate: Candidate) -> Verdict | None:
        return self.judge.build(candidate)

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        with self.lock:
            return self.judge.judge(candidate, workloads)

    def measure(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        with self.lock:
            return self.judge.judge(candidate, workloads, edges=False)

    def assembly(self, candidate: Candidate) -> str:
        return self.judge.assembly(candidate)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgedShop]:
    peaks = Peaks(
        *(local_cpu().key, 2, 1e6, 1e6, 1e6, RATES, RATES),
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        l3_bytes=32 << 20,
    )
    with Judge(tmp_path_factory.mktemp("judge"), POLICY, peaks, device="agents-test") as judge:
        yield JudgedShop(judge)


def agent_saying(script: Any, shop: JudgedShop, way: Way, log: ListLog) -> LlmAgent:
    model = ScriptedModel(script, "test/model")
    redact = Redactor.of_this_host().text
    return LlmAgent("llm:test", model, CountedBudget(), log, redact, TOOLCHAIN, shop, way=way)


def test_one_answer_is_right_and_timed(shop: JudgedShop) -> None:
    log = ListLog()
    agent = agent_saying([as_answer(KERNEL)], shop, Way(), log)
    (candidate,) = agent.propose(brief_for(), 1)
    verdict = shop.measure(candidate, WORKLOADS[:1])
    assert verdict.status in (Status.FASTER, Status.SLOWER)
    assert len(verdict.timings) == 1
    agent.learn(candidate, verdict)


def test_a_build_error_is_mended_from_what_the_compiler_said(shop: JudgedShop) -> None:
    """The model takes the offending word from the compiler's own line."""

    def mend(request: ChatRequest) -> str:
        told = request.messages[-1].text
        if "error" not in told:
            return as_answer(BROKEN)
        assert "main.cpp:" in told
        assert "/tmp" not in told
        return as_answer(BROKEN.replace("nonsense", "0" if "nonsense" in told else "missing"))

    agent = agent_saying(mend, shop, Way(), ListLog())
    (candidate,) = agent.propose(brief_for(), 1)
    assert shop.build(candidate) is None


def test_a_wrong_program_is_mended_after_check(shop: JudgedShop) -> None:
    """The model is led by what the tools say, from a wrong program to a right one."""

    def call(tool: str, **arguments: object) -> Answer:
        return calls(ToolCall("c", tool, json.dumps(arguments)))

    def work(request: ChatRequest) -> Answer:
        told = request.messages[-1].text
        if "incorrect" in told:
            assert "out_TH" in told
            return call("check", files={"main.cpp": KERNEL})
        if "p2 was judged" in told:
            return call("inspect_assembly", program="p2")
        if "<<<assembly" in told:
            return call("submit", program="p2")
        return call("check", files={"main.cpp": WRONG}, workloads=[1])

    log = ListLog()
    agent = agent_saying(work, shop, Way(use_tools=True, turns=6), log)
    (candidate,) = agent.propose(brief_for(), 1)
    assert candidate.files == {"main.cpp": KERNEL}
    assert [step.tool.name for step in log.episodes[0].steps if step.tool] == [
        *("check", "check", "inspect_assembly", "submit")
    ]
    assert log.episodes[0].outcome is Outcome.SUBMITTED


def test_constants_that_a_model_left_open_are_tuned(shop: JudgedShop) -> None:
    """An LLM's candidate becomes the parent of variants, which build and are right."""
    lanes = KERNEL.replace("16", "LANES").replace(
        "GM_EXPORT", "constexpr int LANES = 16;  // as wide as a register\n\nGM_EXPORT", 1
    )
    answer = as_answer(lanes, '{"parameters": {"LANES": [4, 8, 32]}}')
    (candidate,) = agent_saying([answer], shop, Way(), ListLog()).propose(brief_for(), 1)
    assert candidate.origin.parameters == {"LANES": "16"}
    verdict = shop.measure(candidate, WORKLOADS[:1])
    tuning = TuningAgent(1)
    variants = tuning.propose(brief_for(parents=(Parent(candidate, verdict),)), 9)
    assert {variant.origin.parameters["LANES"] for variant in variants} == {"4", "8", "32"}
    assert {variant.origin.model for variant in variants} == {"test/model"}
    judged = shop.measure(variants[0], WORKLOADS[:1])
    assert judged.ratio is not None
