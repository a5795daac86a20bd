"""A built candidate's way through the gates: every workload is checked, then the captured ones are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gristmill.workload import Workload
from harness import feedback
from harness.arena import OutputArena
from harness.decision import decide, workload_evidence
from harness.layout import GUARDED_SETS, SLID_WHOLLY, Sets, slides
from harness.opponent import Opponent
from harness.pairs import time_trial
from harness.policy import JudgePolicy
from harness.session import Finding, Session
from harness.stock import Stock
from harness.timing import PairedTiming
from harness.trial import Trial
from harness.verification import Verification
from kernels import catalogue
from kernels.candidate import Candidate
from kernels.definition import Definition
from kernels.inputs import elements, is_far
from kernels.roofline import Peaks
from kernels.verdict import FailingCase, Status, Verdict, WorkloadTiming

FAR = Sets(most=2)
"""Each takes gigabytes of address space."""
GUARDED = Sets(most=GUARDED_SETS)
SLID_ELEMENTS = 1 << 24
"""Of a workload's inputs, to be checked slid: larger ones differ from smaller ones in nothing that it would show, and
their buffers would drive out those of the others."""
SLID_EVERY_WAY_ELEMENTS = 1 << 18
"""Of the smallest workload, to be checked in every way in which tensors may be slid: larger ones in two, one of them by
chance.
"""
ASSUMED = (
    "where tensors begin at multiples of 64 bytes it was right: "
    "does it assume more of an address than that it is aligned to an element?"
)


class Bout:
    """One candidate, loaded in its runner, against one opponent."""

    def __init__(
        self,
        policy: JudgePolicy,
        peaks: Peaks,
        stock_of: Callable[[Workload, Sets], Stock],
        outputs_of: Callable[[Stock], OutputArena],
        session: Session,
    ) -> None:
        self._policy = policy
        self._peaks = peaks
        self._stock_of = stock_of
        self._outputs_of = outputs_of
        self._session = session
        self._run_ns = 0
        self._deadline = time.monotonic() + policy.total_s

    def judge(
        self,
        built: Verdict,
        candidate: Candidate,
        workloads: Sequence[Workload],
        checked: Sequence[Workload],
        opponent: Opponent,
        random: np.random.Generator,
    ) -> Verdict:
        """The verdict.

        Raises:
            Finding: it was not right, or did not live to the end.
        """
        self._check(candidate, checked, workloads, random)
        self._check_elsewhere(candidate, workloads, random)
        timings: list[WorkloadTiming] = []
        setup_ns: dict[str, int] = {}
        disguised = int(random.integers(len(workloads)))
        verification = Verification()
        for number, workload in enumerate(workloads):
            trial = self._trial(workload, self._policy.sets, candidate, random)
            paired = time_trial(trial, opponent, verification, self._deadline, disguised=number == disguised)
            self._run_ns += trial.run_ns
            built.host["scheduling"] = "real-time" if trial.real_time else "shared with the host's other processes"
            timings.append(self._evidence(trial, paired))
            if candidate.needs_setup:
                setup_ns[workload.label] = trial.setup_ns
        verification.finish()
        self._session.rest()
        trial.review()
        measured = replace(
            built, timings=tuple(timings), setup_ns=setup_ns, run_s=(self._run_ns + opponent.run_ns) / 1e9
        )
        decided = decide(measured, self._policy.min_gain)
        return replace(decided, reason=feedback.timed_reason(decided))

    def _evidence(self, trial: Trial, paired: PairedTiming) -> WorkloadTiming:
        stock = trial.stock
        return workload_evidence(trial.definition, stock.layout, paired, self._peaks, stock.link_ns)

    def _check(
        self,
        candidate: Candidate,
        checked: Sequence[Workload],
        timed: Sequence[Workload],
        random: np.random.Generator,
    ) -> None:
        """Correctness everywhere, the smallest workloads first. After a wrong answer larger ones are tried as well,
        until there are enough cases to learn from; the reason is that of the first whose mistake is known.

        Raises:
            Finding: something was wrong.
        """
        first: Finding | None = None
        failing: list[FailingCase] = []
        for workload in sorted((*checked, *timed), key=elements):
            sets = FAR if is_far(workload) else self._policy.sets if workload in timed else GUARDED
            trial = self._trial(workload, sets, candidate, random)
            regimes = trial.definition.regimes if workload in checked else self._regimes(trial.definition, random)
            try:
                trial.check(regimes)
                self._hurry("checked")
            except Finding as finding:
                first = finding if first is None or _teaches_more(finding, first) else first
                failing += finding.failing
                if not finding.failing or len(failing) >= feedback.FAILING_CASES:
                    break
            self._run_ns += trial.run_ns
        if first is not None:
            raise Finding(first.status, first.reason, first.mismatches, tuple(failing[: feedback.FAILING_CASES]))

    def _check_elsewhere(self, candidate: Candidate, timed: Sequence[Workload], random: np.random.Generator) -> None:
        """Correctness of what is right where an allocator puts it and with the usual scalars: on tensors that begin at
        any element, for engines hand over views, and with other scalars, for models differ in them.

        Raises:
            Finding: something was wrong.
        """
        definition = catalogue.operator(candidate.operator)
        ordered = [workload for workload in sorted(timed, key=elements) if not is_far(workload)]
        small = [w for w in ordered if elements(w) <= SLID_ELEMENTS] or ordered[:1]
        for workload in small:
            ways = slides(definition, workload.dtype)
            others = [*ways][1:] if workload is small[0] else []
            if elements(workload) > SLID_EVERY_WAY_ELEMENTS:
                others = [others[i] for i in random.permutation(len(others))[:1]]
            for way in (SLID_WHOLLY, *others):
                said = f"{workload.label}, {way}", ASSUMED
                self._check_so(candidate, workload, Sets(most=2, slid=ways[way]), said, random)
        varied = definition.varied()
        if varied is not definition and small:
            values = ", ".join(f"{scalar.name} = {scalar.default:g}" for scalar in varied.scalars)
            said = f"{small[0].label}, {values}", "with the usual value it was right"
            self._check_so(candidate, small[0], Sets(most=2, varied=True), said, random)

    def _check_so(
        self,
        candidate: Candidate,
        workload: Workload,
        sets: Sets,
        said: tuple[str, str],
        random: np.random.Generator,
    ) -> None:
        """On traffic values; what is said before and after the reason, if it is wrong."""
        trial = self._trial(workload, sets, candidate, random)
        try:
            trial.check(trial.definition.regimes[:1])
        except Finding as finding:
            if finding.status in (Status.CRASHED, Status.INCORRECT):
                finding.reason = f"{said[0]}: {finding.reason}; {said[1]}"
            raise
        self._run_ns += trial.run_ns
        self._hurry("checked")

    def _trial(self, workload: Workload, sets: Sets, candidate: Candidate, random: np.random.Generator) -> Trial:
        stock = self._stock_of(workload, sets)
        return Trial(
            stock,
            self._outputs_of(stock),
            self._session,
            needs_setup=candidate.needs_setup,
            policy=self._policy,
            random=random,
        )

    def _regimes(self, definition: Definition, random: np.random.Generator) -> list[str]:
        """Traffic and, in a random choice, as many of the others as the policy wants."""
        first, *others = definition.regimes
        wanted = self._policy.regimes_per_workload
        count = len(others) if wanted is None else min(len(others), wanted - 1)
        return [first, *(others[i] for i in random.permutation(len(others))[:count])]

    def _hurry(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise Finding(Status.TIMED_OUT, f"not {what} within {self._policy.total_s:.0f} s")


def _teaches_more(finding: Finding, first: Finding) -> bool:
    """Whether its mistake is known, and that of an earlier finding of the same kind is not."""
    known, before = (any(case.diagnosis for case in one.failing) for one in (finding, first))
    return known and not before and finding.status is first.status
