"""What tests of language model agents stand on: an assignment, programs, a budget and a log that can be looked into."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.assignment import Assignment, Toolchain
from agents.brief import Brief
from agents.chat import Answer, Finish, ToolCall, Usage
from agents.episode import Episode
from agents.errors import BudgetSpentError
from agents.spending import Amount
from gristmill.hardware import Hardware
from gristmill.workload import Workload
from kernels import catalogue
from kernels.candidate import Candidate, Origin
from kernels.inputs import workload
from kernels.verdict import Status, Verdict

HARDWARE = Hardware("x86_64-test", "test processor", 2, ("avx2", "fma", "avx512f"))
TOOLCHAIN = Toolchain(("-O3", "-march=native"), ("-ffast-math", "-funroll-loops"))
ORIGIN = Origin("llm:test", model="test/model", episode="e1")
DEFINITION = catalogue.operator("rms_norm")
WORKLOADS = tuple(workload(DEFINITION, "float32", tokens=tokens, hidden=512) for tokens in (1, 4, 16))
KERNEL = """#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
  const float *weight = static_cast<const float *>(call->inputs[1].data);
  const int64_t tokens = x.shape[0], hidden = x.shape[1];
  const float eps = static_cast<float>(call->scalars[0]);
  for (int64_t t = 0; t < tokens; ++t) {
    const float *row = static_cast<const float *>(x.data) + t * x.stride[0];
    float *to = static_cast<float *>(out.data) + t * hidden;
    float sums[16] = {};
    int64_t h = 0;
    for (; h + 16 <= hidden; h += 16)
      for (int lane = 0; lane < 16; ++lane) sums[lane] += row[h + lane] * row[h + lane];
    for (; h < hidden; ++h) sums[h % 16] += row[h] * row[h];
    float sum = 0;
    for (float lane : sums) sum += lane;
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(hidden) + eps);
    for (h = 0; h < hidden; ++h) to[h] = row[h] * scale * weight[h];
  }
  return 0;
}
"""
WRONG = KERNEL.replace("row[h] * scale * weight[h]", "row[h] * scale")
BROKEN = KERNEL.replace("float sum = 0;", "float sum = nonsense;")


def brief_for(workloads: Sequence[Workload] = WORKLOADS, **fields: object) -> Brief:
    return Brief("rms_norm", "float32", tuple(workloads), HARDWARE, 2, 20.0, 100.0, **fields)  # type: ignore[arg-type]


def assignment_for(brief: Brief | None = None) -> Assignment:
    return Assignment(brief or brief_for(), DEFINITION, TOOLCHAIN)


def numbered(number: int, kernel: str = KERNEL) -> str:
    """A program that differs from others by its number."""
    return f"// {number}\n{kernel}"


def as_answer(kernel: str, header: str = "") -> str:
    head = f"```json\n{header}\n```\n" if header else ""
    return f"Here it is.\n\n{head}```cpp main.cpp\n{kernel}```\nIt is fast.\n"


def calls(*made: ToolCall, usage: Usage | None = None) -> Answer:
    return Answer("test/model", "", made, Finish.TOOLS, usage or Usage(), 0.0)


def verdict_on(
    candidate: Candidate, status: Status = Status.FASTER, ratio: float | None = 2.0, **fields: object
) -> Verdict:
    return Verdict(status, f"made up {status.value}", candidate.digest, candidate.operator, ratio, **fields)  # type: ignore[arg-type]


def unredacted(text: str) -> str:
    return text


@dataclass
class ListLog:
    """Keeps episodes in memory."""

    episodes: list[Episode] = field(default_factory=list)

    def record(self, episode: Episode) -> None:
        self.episodes.append(episode)


@dataclass
class _Kept:
    budget: CountedBudget
    amount: Amount

    def settle(self, actual: Amount) -> None:
        self.budget.end(self, actual)

    def cancel(self) -> None:
        self.budget.end(self, Amount())


class CountedBudget:
    """A budget of tokens in memory that refuses to be misused."""

    def __init__(self, tokens: int = 1 << 60) -> None:
        self.cap = tokens
        self.spent = Amount()
        self.purposes: list[str] = []
        self._open: list[_Kept] = []
        self._lock = threading.Lock()

    def reserve(self, most: Amount, purpose: str, least: Amount | None = None) -> _Kept:
        with self._lock:
            if self.spent.tokens + sum(kept.amount.tokens for kept in self._open) + most.tokens > self.cap:
                raise BudgetSpentError(f"{most.tokens} tokens pass the cap of {self.cap}")
            self.purposes.append(purpose)
            self._open.append(_Kept(self, most))
            return self._open[-1]

    def end(self, kept: _Kept, actual: Amount) -> None:
        with self._lock:
            self._open.remove(kept)
            self.spent += actual

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def held_tokens(self) -> int:
        with self._lock:
            return sum(kept.amount.tokens for kept in self._open)
