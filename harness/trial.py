"""One candidate on one workload: fill the buffers, run, look at what came out, and time it against the baseline.

Shape suffix: S sets.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import torch
from torch import Generator, Tensor

from harness import comparer, draws, scheduling, timing
from harness.arena import Arena, Layout
from harness.draws import Draws
from harness.policy import JudgePolicy
from harness.session import Finding, Session, as_baseline_error
from harness.timing import Pair, PairedTiming
from kernels.definition import Definition
from kernels.verdict import Mismatch, Status

CHECKED_SETS = 2
CHECKED_ELEMENTS = 1 << 22
"""Of the weights, in the thorough check of each workload in traffic values; of larger ones a random part."""
CHEAP_WEIGHT_BYTES = 1 << 20
"""Weights of all sets of a batch up to this size get new values with every batch."""
UNWRITTEN = "unwritten"
BASELINE_PATIENCE = 6.0
"""A baseline may compile itself at its first call."""
MIN_VERIFIED_SETS = 2


class Trial:
    """The candidate's side of one workload. All sets hold traffic values from the start on."""

    def __init__(
        self,
        definition: Definition,
        layout: Layout,
        inputs: Arena,
        outputs: Arena,
        session: Session,
        *,
        needs_setup: bool,
        policy: JudgePolicy,
        rng: random.Random,
    ) -> None:
        self.definition = definition
        self.layout = layout
        self.inputs = inputs
        self.outputs = outputs
        self.session = session
        self.setup_ns = 0
        self.real_time = False
        self.needs_setup = needs_setup
        self._policy = policy
        self._rng = rng
        self._generator = Generator().manual_seed(rng.getrandbits(63))
        session.plan(layout, policy.deadline_s)

    @property
    def label(self) -> str:
        return self.layout.workload.label

    def refresh(self, source: Draws, numbers: Tensor, *, weights: bool) -> None:
        """New values under the same addresses; where weights change, the declared setup runs again."""
        indices = [*draws.activations(self.layout), *(draws.weights(self.layout) if weights else ())]
        source.fill(self.inputs, numbers, indices, self._generator)
        if weights and self.needs_setup:
            spent_ns = self.session.setup(numbers.tolist(), self._policy.deadline_s * max(1, len(numbers) // 4))
            self.setup_ns = spent_ns // len(numbers)

    def run(self, numbers: Tensor) -> int:
        """Poisons the outputs of those sets and runs them; returns nanoseconds."""
        self.outputs.poison(numbers)
        return self.session.run(numbers.tolist(), self._policy.deadline_s)

    def inspect(self, source: Draws, numbers: Tensor, recomputed: Tensor, elements: int) -> Finding | None:
        """What is wrong with the outputs of those sets; the recomputed ones are compared with float64, where the
        weights are larger than `elements` on a part of them that is chosen now.
        """
        poisoned = self.outputs.poisoned(numbers)
        whole = [math.prod(tensor.shape[1:]) for tensor in self.outputs.tensors]
        untouched = self._unwritten([left_S == size for left_S, size in zip(poisoned, whole, strict=True)], "all")
        incomplete = self._unwritten([left_S > 0 for left_S in poisoned], "part")
        return untouched or self._spilled(numbers) or self._compare(source, recomputed, elements) or incomplete

    def _unwritten(self, flags: list[Tensor], extent: str) -> Finding | None:
        for spec, flags_S in zip(self.definition.outputs, flags, strict=True):
            if bool(flags_S.any()):
                calls = f"{int(flags_S.sum())} of {len(flags_S)} calls"
                return Finding(
                    Status.INCORRECT, f"{self.label}: {extent} of {spec.name} was left {UNWRITTEN} in {calls}"
                )
        return None

    def _spilled(self, numbers: Tensor) -> Finding | None:
        for spec, spilled_S in zip(self.definition.outputs, self.outputs.spilled(numbers), strict=True):
            if bool(spilled_S.any()):
                return Finding(Status.INCORRECT, f"{self.label}: wrote outside of {spec.name}")
        return None

    def _compare(self, source: Draws, numbers: Tensor, elements: int) -> Finding | None:
        part = draws.choose_part(self.definition, self.layout.workload, elements, self._generator)
        expected = source.expected(part.of_inputs(self.inputs.tensors, numbers))
        outputs = part.of_outputs(self.outputs.tensors, numbers)
        mismatches: list[Mismatch] = []
        for spec, found, wanted, facts in zip(self.definition.outputs, outputs, expected, source.facts, strict=True):
            mismatch = comparer.compare(
                found, wanted, facts, workload=self.label, output=spec.name, factor=self._policy.error_factor
            )
            if mismatch is not None:
                index = part.whole_index(spec.dims, mismatch.worst_index)
                mismatches.append(replace(mismatch, worst_index=index))
        if not mismatches:
            return None
        return Finding(Status.INCORRECT, describe(mismatches[0], source.regime), tuple(mismatches))

    def check(self, source: Draws) -> None:
        """Correctness in one regime: two calls at once, then changed inputs under unchanged addresses.

        Raises:
            Finding: the first thing that is wrong.
        """
        both = torch.arange(CHECKED_SETS)
        first = both[:1]
        self.refresh(source, both, weights=True)
        self.run(both)
        thorough = source.regime == self.definition.regimes[0]
        _raise(self.inspect(source, both, both, CHECKED_ELEMENTS if thorough else int(self._policy.verified_work)))
        before = [bits(tensor) for tensor in self.outputs.tensors]
        self.refresh(source, first, weights=bool(draws.weights(self.layout)))
        self.run(first)
        finding = self.inspect(source, first, first, int(self._policy.verified_work))
        after = [bits(tensor) for tensor in self.outputs.tensors]
        if finding is not None:
            if all(bool((a[0] == b[0]).all()) for a, b in zip(after, before, strict=True)):
                raise Finding(
                    Status.CHEATED,
                    f"{self.label}: gave the previous answer again after its inputs had changed in place",
                    finding.mismatches,
                )
            raise finding
        if any(bool((a[1] != b[1]).any()) for a, b in zip(after, before, strict=True)):
            raise Finding(Status.INCORRECT, f"{self.label}: changed the output of an earlier call")

    def time(self, source: Draws, baseline: Session, deadline: float) -> PairedTiming:
        """Pairs of batches until the policy's stop rule is content; outputs of every timed batch are looked at.

        Raises:
            Finding: a timed call was wrong, or took a time that cannot be.
        """
        side = _Pairs(self, source, baseline, self._policy, self._rng)
        side.prepare()
        rule = self._policy.stop

        def clock_s() -> float:
            if time.monotonic() > deadline:
                raise Finding(Status.TIMED_OUT, f"{self.label}: not measured within {self._policy.total_s:.0f} s")
            return time.monotonic()

        try:
            with scheduling.measuring() as self.real_time:
                self.session.hasten()
                baseline.hasten()
                return timing.collect(side.measure, rule, self._rng, clock_s)
        except timing.VoidRunError as error:
            raise Finding(Status.CHEATED, f"{self.label}: {error}; the run is void") from None


class _Pairs:
    """The two sides of a pair, with batch sizes, refreshes and verification."""

    def __init__(self, trial: Trial, source: Draws, baseline: Session, policy: JudgePolicy, rng: random.Random) -> None:
        self._trial = trial
        self._source = source
        self._baseline = baseline
        self._policy = policy
        self._rng = rng
        layout = trial.layout
        self._sets = layout.sets
        weights = [place for place, weight in zip(layout.inputs, layout.weights, strict=True) if weight]
        self._cheap_weights = sum(place.room for place in weights) * layout.sets <= CHEAP_WEIGHT_BYTES
        work = float(sum(math.prod(place.layout.shape) for place in layout.inputs))
        work += trial.definition.cost(layout.workload.axes, 1).flops / 8
        self._recomputed = max(MIN_VERIFIED_SETS, int(policy.verified_work / max(work, 1)))
        self._candidate_ns: float = 0.0
        self._baseline_ns = 0.0

    def prepare(self) -> None:
        """Fills all sets, lets both sides run into their stride, and learns how long a call takes."""
        trial = self._trial
        everything = torch.arange(self._sets)
        trial.refresh(self._source, everything, weights=True)
        self._baseline.plan(trial.layout, self._policy.deadline_s)
        for _ in range(2):
            count = min(self._sets, 16)
            self._baseline_ns = self._run_baseline(self._pick(count))
            numbers = self._pick(count)
            self._candidate_ns = trial.run(numbers) / count
            self._verify(numbers)

    def measure(self, candidate_first: bool) -> Pair:
        """One pair: fresh values for both, then one batch each, then a look at what the candidate wrote."""
        sizes = [
            timing.batch_size(per_call_ns, self._policy.batch_ns, self._sets, self._rng)
            for per_call_ns in (self._candidate_ns, self._baseline_ns)
        ]
        numbers = self._pick(max(sizes))
        weights = self._cheap_weights and not self._trial.needs_setup
        self._trial.refresh(self._source, numbers, weights=weights)
        ours = numbers[: sizes[0]]
        if candidate_first:
            self._candidate_ns = self._trial.run(ours) / len(ours)
        self._baseline_ns = self._run_baseline(numbers[: sizes[1]])
        if not candidate_first:
            self._candidate_ns = self._trial.run(ours) / len(ours)
        self._verify(ours)
        return Pair(self._candidate_ns, self._baseline_ns)

    def _run_baseline(self, numbers: Tensor) -> float:
        try:
            return self._baseline.run(numbers.tolist(), self._policy.deadline_s * BASELINE_PATIENCE) / len(numbers)
        except Finding as finding:
            raise as_baseline_error("of the timing", finding) from None

    def _pick(self, count: int) -> Tensor:
        return torch.tensor(self._rng.sample(range(self._sets), count))

    def _verify(self, numbers: Tensor) -> None:
        """The sets to recompute are chosen now, after the batch."""
        if len(numbers) > self._recomputed:
            chosen = torch.tensor(self._rng.sample(numbers.tolist(), self._recomputed))
        else:
            chosen = numbers
        finding = self._trial.inspect(self._source, numbers, chosen, int(self._policy.verified_work))
        if finding is not None:
            raise Finding(
                Status.CHEATED if UNWRITTEN in finding.reason else finding.status,
                f"right when checked, wrong when timed: {finding.reason}",
                finding.mismatches,
            )


def bits(tensor: Tensor) -> Tensor:
    """A copy of the first sets' outputs, to compare bit by bit."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor[:CHECKED_SETS].contiguous().view(kinds[tensor.element_size()]).clone()


def describe(mismatch: Mismatch, regime: str) -> str:
    """One line for agents: where, how many, how far."""
    where = f"{mismatch.workload}, {regime} values: {mismatch.output} is wrong"
    extent = f"({mismatch.pattern}; {mismatch.wrong_elements} of {mismatch.total_elements} elements)"
    values = f"found {mismatch.found}, expected {mismatch.expected}, {mismatch.error_ratio} times the allowed error"
    return f"{where} {extent}, worst at {list(mismatch.worst_index)}: {values}"


def _raise(finding: Finding | None) -> None:
    if finding is not None:
        raise finding
