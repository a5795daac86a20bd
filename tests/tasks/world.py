"""A small pipeline: settings in a temporary home, workloads, candidates, verdicts, a bench that follows a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gristmill.domain import Domain
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.candidate import Candidate, Language, Origin
from kernels.profile import RequestStatistics, TrafficProfile
from kernels.roofline import Peaks
from kernels.verdict import Status, Verdict, WorkloadTiming
from tasks.settings import Settings

HARDWARE = local_cpu().key
PEAKS = Peaks(HARDWARE, 2, 20.0, 200.0, 400.0, {"float32": 100.0, "bfloat16": 100.0}, {"float32": 400.0}, 0, 0, 0)

RatioOf = Callable[[Candidate, Workload], float]


def settings(home: Path, store: Path | None = None) -> Settings:
    home.mkdir(parents=True, exist_ok=True)
    return Settings(home, f"file://{store}" if store else "", "chat", "tiny", HARDWARE, "")


def rms_norm(tokens: int, hidden: int = 64, calls: int = 10, time_ns: int = 1_000_000) -> Workload:
    made = inputs.workload(catalogue.operator("rms_norm"), "float32", tokens=tokens, hidden=hidden)
    return replace(made, calls=calls, time_ns=time_ns)


def silu_and_mul(tokens: int, calls: int = 10, time_ns: int = 1_000_000) -> Workload:
    made = inputs.workload(catalogue.operator("silu_and_mul"), "float32", tokens=tokens, intermediate=96)
    return replace(made, calls=calls, time_ns=time_ns)


def profile(*workloads: Workload, end: str = "2026-12-01T01:00:00+00:00") -> TrafficProfile:
    return TrafficProfile(
        "chat", "tiny", HARDWARE, "2026-12-01T00:00:00+00:00", end, {}, tuple(workloads), RequestStatistics(), 0
    )


def candidate(number: int = 0, operator: str = "rms_norm", agent: str = "pattern:test") -> Candidate:
    return Candidate(
        operator,
        Language.CPP,
        {"main.cpp": f"// {number}\n", "rows.h": "// shared\n"},
        Domain(operator, "float32"),
        Origin(agent, "rows", {"number": str(number)}),
    )


def timing(workload: Workload, ratio: float, spread: float = 0.05) -> WorkloadTiming:
    return WorkloadTiming(workload, ratio, ratio - spread, ratio + spread, 1000.0, 1000.0 * ratio, 9, 0.4, 12.0)


def verdict(of: Candidate, *timings: WorkloadTiming, duration_s: float = 1.0) -> Verdict:
    """Faster or slower by the timings; without any, a failed build."""
    if not timings:
        return Verdict(Status.BUILD_FAILED, "main.cpp:1: error", of.digest, of.operator, duration_s=duration_s)
    status = Status.FASTER if any(t.ratio_low > 1 for t in timings) else Status.SLOWER
    ratio = sum(t.ratio for t in timings) / len(timings)
    return Verdict(status, "measured", of.digest, of.operator, ratio, timings, duration_s=duration_s)


@dataclass
class Clock:
    """Time that passes only when somebody works."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FormulaBench:
    """A bench whose verdicts follow a formula and cost seconds of a fake clock. It dies where told to."""

    ratio_of: RatioOf
    clock: Clock = field(default_factory=Clock)
    cost_s: float = 1.0
    dies_at: int = -1
    """Judgement, counted from 0, in whose middle the process is killed."""
    prepared: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    def prepare(self, candidate: Candidate) -> None:
        self.prepared.append(candidate.digest)

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int | None = None) -> Verdict:
        if len(self.judged) == self.dies_at:
            raise KeyboardInterrupt
        self.judged.append(candidate.digest)
        self.clock.now_s += self.cost_s
        return verdict(candidate, *(timing(w, self.ratio_of(candidate, w)) for w in workloads), duration_s=self.cost_s)

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        self.checked.append(candidate.digest)
        self.clock.now_s += self.cost_s / 10
        return verdict(candidate, *(timing(w, self.ratio_of(candidate, w)) for w in workloads))

    def is_built(self, candidate: Candidate) -> bool:
        return True

    def build(self, candidate: Candidate) -> Verdict | None:
        return verdict(candidate) if "#error" in candidate.files["main.cpp"] else None

    def assembly(self, candidate: Candidate) -> str:
        return f"gm_run: {candidate.digest}"

    def object_of(self, candidate: Candidate) -> bytes:
        return b"\x7fELF " + candidate.digest.encode()


@dataclass
class ListLog:
    """Remembers what it was told."""

    recorded: list[tuple[str, int]] = field(default_factory=list)

    def record(self, candidate: Candidate, verdict: Verdict, step: int) -> None:
        self.recorded.append((candidate.digest, step))
