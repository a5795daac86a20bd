"""One candidate on one workload: fill the buffers, run, and look at what came out.

Shape suffix: S sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from harness import comparer, diagnosis, feedback, footprint
from harness.arena import Numbers, OutputArena, Walk, indices
from harness.comparer import ErrorFacts, Expected
from harness.draws import Draws, Part, choose_part
from harness.footprint import Scene
from harness.layout import GUARDED_SETS
from harness.policy import JudgePolicy
from harness.session import Finding, Session
from harness.stock import Stock
from harness.suspects import suspects
from kernels.definition import Definition
from kernels.inputs import is_far
from kernels.verdict import Mismatch, Status

CHECKED_ELEMENTS = 1 << 22
"""Of the inputs, in the check of each workload in traffic values; of larger ones a random part."""
SUSPECTS = 16
"""Places that are recomputed because they differ most from the engine's own answer."""
SETUP_SETS_PER_DEADLINE = 4


@dataclass(frozen=True)
class Batch:
    """One run: how long it took, and what it must have done."""

    spent_ns: int
    follow: Callable[[], tuple[Walk, bool]]

    @cached_property
    def survey(self) -> tuple[Walk, bool]:
        """What it called, and whether all of it is well at first sight. Found out when it is first asked for: it reads
        all that was written, and between the two sides of a pair that would drive the inputs of one of them out of the
        caches.
        """
        return self.follow()

    @property
    def walk(self) -> Walk:
        """What it called."""
        return self.survey[0]


class Trial:
    """The candidate's side of one workload."""

    def __init__(
        self,
        stock: Stock,
        outputs: OutputArena,
        session: Session,
        *,
        needs_setup: bool,
        policy: JudgePolicy,
        random: np.random.Generator,
    ) -> None:
        self.stock = stock
        self.outputs = outputs
        self.session = session
        self.needs_setup = needs_setup
        self.policy = policy
        self.random = random
        self.setup_ns = 0
        self.run_ns = 0
        """In the runner, all requests together: what is not the judge's own time."""
        self.real_time = False
        self.generator = Generator().manual_seed(int(random.integers(0, 1 << 63)))

    @property
    def definition(self) -> Definition:
        return self.stock.definition

    @property
    def label(self) -> str:
        return self.stock.workload.label

    def plan(self, *, guarded: int = 0) -> None:
        """Maps the buffers in the runner: with guards behind the first sets to check those, all at once to time."""
        payload, output_bytes = self.stock.plan(guarded=guarded), self.stock.layout.output_bytes
        self.session.plan(payload, self.policy.deadline_s, output_bytes=output_bytes)

    def set_up(self, numbers: Numbers) -> None:
        """Runs the declared setup phase of those sets, if there is one."""
        if self.needs_setup:
            patience_s = self.policy.deadline_s * max(1, len(numbers) // SETUP_SETS_PER_DEADLINE)
            spent_ns = self.session.setup(numbers, patience_s)
            self.setup_ns = spent_ns // len(numbers)
            self.run_ns += spent_ns

    def run(self, pool: Numbers, calls: int, *, linked: bool = False) -> Batch:
        """Poisons the outputs of the pool and calls so many of its sets."""
        seed = int(self.random.integers(0, 1 << 63))
        self.outputs.poison(pool)
        spent_ns = self.session.run(pool, calls, seed, self.policy.deadline_s)
        self.run_ns += spent_ns
        return Batch(spent_ns, partial(self.outputs.survey, seed, pool, calls, linked=linked))

    def review(self) -> None:
        """What calls leave behind, and what two at once do to each other, on two sets of different traffic values.

        Raises:
            Finding: as `Session.review`.
        """
        cases = np.arange(2)
        self.stock.fill_cases(self.definition.regimes[:1], np.zeros_like(cases), cases.astype(np.uint32), cases)
        self.session.review(self.policy.deadline_s)

    def examine(self, batch: Batch) -> Finding | None:
        """What is wrong at first sight: outputs not written, written around, or written without a call."""
        if batch.survey[1]:
            return None
        seen = zip(self.definition.outputs, self.outputs.sizes, self.outputs.inspect(batch.walk.called), strict=True)
        for spec, size, (left, spilled) in seen:
            if spilled.any():
                return Finding(Status.INCORRECT, f"{self.label}: wrote outside of {spec.name}")
            if left.any():
                extent = "all" if (left == size).any() else "part"
                where = f"in {np.count_nonzero(left)} of {len(batch.walk.called)} calls"
                return Finding(Status.INCORRECT, f"{self.label}: {extent} of {spec.name} was left unwritten {where}")
        if len(batch.walk.decoys):
            untouched = zip(
                self.definition.outputs, self.outputs.sizes, self.outputs.inspect(batch.walk.decoys), strict=True
            )
            for spec, size, (left, spilled) in untouched:
                if spilled.any() or (left != size).any():
                    reason = (
                        f"{self.label}: {spec.name} of a call that was never made was written, or changed afterwards"
                    )
                    return Finding(Status.CHEATED, reason)
        return Finding(Status.CHEATED, f"{self.label}: outputs changed while nothing was called")

    def check(self, regimes: Sequence[str]) -> None:
        """Correctness in those regimes: two sets each, called in one go; then one of the two again, with other inputs
        under the same addresses.

        Raises:
            Finding: the first thing that is wrong.
        """
        at_once = max(1, min(self.stock.layout.sets, GUARDED_SETS, 2 * len(regimes)) // 2)
        self.plan(guarded=2 * at_once)
        for start in range(0, len(regimes), at_once):
            self._check(regimes[start : start + at_once])

    def _check(self, regimes: Sequence[str]) -> None:
        pool = np.arange(2 * len(regimes), dtype=np.uint32)
        which = np.repeat(np.arange(len(regimes)), 2)
        cases = np.concatenate([self._two_cases(self.stock.draws(regime)) for regime in regimes])
        self.stock.fill_cases(regimes, which, pool, cases)
        self.set_up(pool)
        batch = self.run(pool, len(pool))
        _raise(self._locate(self.examine(batch), regimes, which, pool, cases))
        _raise(self._compare_cases(regimes, which, pool, cases))
        before = self.outputs.keep(len(pool))
        first, second = pool[::2].copy(), pool[1::2].copy()
        changed = regimes, np.arange(len(regimes)), first, cases[1::2].copy()
        self.stock.fill_cases(*changed)
        self.set_up(first)
        finding = self.examine(self.run(first, len(first)))
        finding = self._locate(finding, *changed) or self._compare_cases(*changed, before)
        if finding is not None:
            if self.outputs.unchanged(before, first):
                reason = f"{self.label}: gave the previous answer again after its inputs had changed in place"
                raise Finding(Status.CHEATED, reason, finding.mismatches, finding.failing)
            raise finding
        if not self.outputs.unchanged(before, second):
            raise Finding(Status.INCORRECT, f"{self.label}: changed the output of an earlier call")

    def _locate(
        self,
        finding: Finding | None,
        regimes: Sequence[str],
        which: NDArray[np.int64],
        numbers: Numbers,
        cases: NDArray[np.int64],
    ) -> Finding | None:
        """What is wrong at first sight with sets that hold whole base draws of regimes, with its place."""
        if finding is None or finding.status is not Status.INCORRECT:
            return finding
        scene = Scene(self.stock, self.outputs, regimes, which, numbers, cases, self.policy.error_factor)
        return footprint.located(finding, scene)

    def _two_cases(self, draws: Draws) -> NDArray[np.int64]:
        first = int(self.random.integers(0, draws.count))
        second = (first + int(self.random.integers(1, draws.count))) % draws.count
        return np.array([first, second], np.int64)

    def _compare_cases(
        self,
        regimes: Sequence[str],
        which: NDArray[np.int64],
        numbers: Numbers,
        cases: NDArray[np.int64],
        before: Sequence[Tensor] = (),
    ) -> Finding | None:
        """Compares sets that hold whole base draws of regimes; `before` holds what the sets' outputs were an earlier
        call's.
        """
        answers = self.stock.answers(regimes, self.policy.error_factor)
        if answers is not None and self.outputs.accepts(answers, which, numbers, cases):
            return None
        for index, regime in enumerate(regimes):
            of_it = numbers[which == index], cases[which == index]
            own = self.stock.answers([regime], self.policy.error_factor)
            if own is None or not self.outputs.accepts(own, np.zeros(len(of_it[0]), np.int64), *of_it):
                finding = self._compare_regime(self.stock.draws(regime), *of_it, before)
                if finding is not None:
                    return finding
        return None

    def _compare_regime(
        self, draws: Draws, numbers: Numbers, cases: NDArray[np.int64], before: Sequence[Tensor]
    ) -> Finding | None:
        thorough = draws.regime == self.definition.regimes[0] and not self.stock.layout.slid
        elements = CHECKED_ELEMENTS if thorough else int(self.policy.verified_work)
        part = Part(self.definition)
        if draws.answers is None:
            part = choose_part(self.definition, self.stock.workload, elements, self.generator)
        parts = [part]
        if thorough and part.places is not None and not is_far(self.stock.workload):
            parts.append(self.suspected(int(numbers[0]), SUSPECTS))
        for one in parts:
            inputs = one.of_inputs(draws.bases, torch.from_numpy(cases))
            outputs = one.of_outputs(self.outputs.tensors, indices(numbers))
            mismatches = self.compare(one, outputs, draws.expected(inputs), draws.facts)
            if mismatches:
                return self._explain(draws, int(numbers[mismatches[0].call]), mismatches, before)
        return None

    def suspected(self, number: int, count: int, made: Mapping[int, Tensor] | None = None) -> Part:
        """Where one set's outputs differ most from the engine's: a single wrong element is no matter of luck.

        `made` holds, by input, what the call was given that does not lie in the buffers, a set of one in front.
        """
        definition, elsewhere = self.definition, made or {}
        inputs = [
            elsewhere[index][0] if index in elsewhere else tensor[number]
            for index, tensor in enumerate(self.stock.inputs.tensors)
        ]
        outputs = [tensor[number] for tensor in self.outputs.tensors]
        axis = definition.independent_axis or definition.row_axis
        return Part(definition, axis, suspects(definition, axis, inputs, outputs, count))

    def compare(
        self, part: Part, outputs: Sequence[Tensor], expected: Sequence[Expected], yardsticks: Sequence[ErrorFacts]
    ) -> tuple[Mismatch, ...]:
        """What the comparer says of S sets, or of a part of each: the wrong outputs."""
        mismatches: list[Mismatch] = []
        for spec, found, wanted, facts in zip(self.definition.outputs, outputs, expected, yardsticks, strict=True):
            rule = comparer.Rule.of(facts, wanted.dtype, self.policy.error_factor)
            if self.outputs.accepts_copies(found.contiguous(), wanted.dense(), rule):
                continue
            mismatch = comparer.compare(
                found, wanted, facts, workload=self.label, output=spec.name, factor=self.policy.error_factor
            )
            if mismatch is not None:
                index = part.whole_index(spec.dims, mismatch.worst_index, mismatch.call)
                mismatches.append(replace(mismatch, worst_index=index))
        return tuple(mismatches)

    def _explain(
        self, draws: Draws, number: int, mismatches: tuple[Mismatch, ...], before: Sequence[Tensor]
    ) -> Finding:
        """What an agent can learn from a wrong set that still lies in the buffers."""
        mismatch, workload = mismatches[0], self.stock.workload
        inputs = [tensor[number] for tensor in self.stock.inputs.tensors]
        outputs = [tensor[number] for tensor in self.outputs.tensors]
        said = diagnosis.diagnose(
            self.definition,
            workload,
            inputs,
            outputs,
            draws.facts,
            output=[spec.name for spec in self.definition.outputs].index(mismatch.output),
            previous=[tensor[number] for tensor in before] or None,
            factor=self.policy.error_factor,
        )
        case = feedback.describe_case(
            self.definition, workload, draws.regime, inputs, None, None, mismatch, diagnosis=said
        )
        return Finding(Status.INCORRECT, feedback.reason(mismatch, draws.regime, said), mismatches, (case,))


def _raise(finding: Finding | None) -> None:
    if finding is not None:
        raise finding
