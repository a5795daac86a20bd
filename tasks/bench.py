"""The judge as searches and promotions use it: opened once per session, warm from candidate to candidate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from gristmill.workload import Workload
from harness.judge import Judge
from harness.policy import JudgePolicy, promotion, screening, search
from kernels.candidate import Candidate
from kernels.roofline import cached_peaks
from kernels.verdict import Verdict
from tasks.settings import Settings


class JudgeBench:
    """One judge. For a promotion give a seed: every candidate then meets the same fresh inputs."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def prepare(self, candidate: Candidate) -> None:
        self._judge.prepare(candidate)

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int | None = None) -> Verdict:
        return self._judge.judge(candidate, workloads, seed=seed)

    def check(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict:
        """Is it right, and roughly how fast?"""
        return self._judge.judge(candidate, workloads, policy=screening())

    def is_built(self, candidate: Candidate) -> bool:
        return self._judge.is_built(candidate)

    def build(self, candidate: Candidate) -> Verdict | None:
        """Beside what is measured, from any thread: a verdict that refuses it, or None."""
        return self._judge.build(candidate)

    def assembly(self, candidate: Candidate) -> str:
        """Innermost loops of what was built."""
        return self._judge.assembly(candidate)

    def object_of(self, candidate: Candidate) -> bytes:
        """The shared object that was judged; from the build cache."""
        build = self._judge.builder.build(candidate)
        assert build.path is not None, "only candidates that were built can win"
        return build.path.read_bytes()

    @property
    def environment(self) -> dict[str, str]:
        """What the proofs of this bench depend on."""
        import torch

        return {"torch": torch.__version__, "compiler": self._judge.builder.compiler_version, "abi": "1"}


@contextlib.contextmanager
def opened(settings: Settings, policy: JudgePolicy) -> Iterator[JudgeBench]:
    """A bench on this host until the block ends; nothing of it is left then."""
    with Judge(settings.judge_dir, policy, cached_peaks(settings.peaks_path)) as judge:
        yield JudgeBench(judge)


def search_bench(settings: Settings) -> contextlib.AbstractContextManager[JudgeBench]:
    return opened(settings, search())


def proof_bench(settings: Settings, budget_s: float) -> contextlib.AbstractContextManager[JudgeBench]:
    """For second judgements, with that many seconds of measuring per workload."""
    return opened(settings, promotion(budget_s))
