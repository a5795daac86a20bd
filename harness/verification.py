"""What timed calls wrote, recomputed in float64: all workloads of a candidate together where rows look alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness import comparer, feedback
from harness.comparer import Expected
from harness.draws import Draws, Part
from harness.samples import Samples
from harness.session import Finding
from harness.trial import Trial
from kernels.verdict import Status

DISGUISED_SLACK = 2.0
"""On stress values in a timed batch: how exact an answer is to them was checked before, without a link."""
TIMED_WRONG = "right when checked, wrong when timed: "


@dataclass(frozen=True)
class _Kept:
    trial: Trial
    draws: Draws
    part: Part
    inputs: list[Tensor]
    outputs: list[Tensor]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Without the number of calls."""
        return tuple(tensor.shape[1:] for tensor in (*self.inputs, *self.outputs))


class Verification:
    """Collects samples of timed calls, and recomputes them when it is finished."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def add(self, trial: Trial, samples: Samples, regime: str) -> None:
        """Takes in samples; their workload's buffers may be filled anew afterwards."""
        kept = _Kept(trial, trial.stock.draws(regime), samples.part, samples.inputs(), samples.outputs())
        self._kept.append(kept)

    def finish(self) -> None:
        """Recomputes all that was added since it was last finished.

        Raises:
            Finding: something was wrong.
        """
        alike = defaultdict[tuple[torch.Size, ...], list[_Kept]](list)
        for kept in self._kept:
            alike[kept.shapes].append(kept)
        self._kept = []
        for group in alike.values():
            inputs = [torch.cat(tensors) for tensors in zip(*(kept.inputs for kept in group), strict=True)]
            expected = group[0].draws.expected(inputs)
            first = 0
            for kept in group:
                end = first + len(kept.inputs[0])
                _look(kept, [Expected(e.values[first:end], e.scale[first:end], e.dtype) for e in expected])
                first = end


def _look(kept: _Kept, expected: Sequence[Expected]) -> None:
    trial, draws = kept.trial, kept.draws
    known = draws.linked_facts if trial.stock.layout.linked else draws.facts
    if draws.regime != trial.definition.regimes[0]:
        known = tuple(facts.scaled(DISGUISED_SLACK) for facts in known)
    for found, wanted, facts in zip(kept.outputs, expected, known, strict=True):
        rule = comparer.Rule.of(facts, wanted.dtype, trial.policy.error_factor)
        if not trial.outputs.accepts_exact(found.contiguous(), wanted, rule):
            mismatches = trial.compare(draws, kept.part, kept.inputs, kept.outputs, known)
            if mismatches:
                reason = TIMED_WRONG + feedback.reason(mismatches[0], draws.regime)
                raise Finding(Status.INCORRECT, reason, mismatches)
