"""What timed calls wrote, recomputed in float64: all workloads of a candidate together where rows look alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness import feedback
from harness.comparer import Expected
from harness.draws import Draws, Part
from harness.samples import Samples
from harness.session import Finding
from harness.trial import Trial
from kernels.verdict import Status

MAX_ELEMENTS = 1 << 21
"""That are recomputed at once: in float64, with all that is between, each takes a hundred bytes."""
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
    """Collects samples of timed calls, and recomputes them when it is finished, or when they are many."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._elements = 0

    def add(self, trial: Trial, samples: Samples, regime: str) -> None:
        """Takes in samples; their workload's buffers may be filled anew afterwards.

        Raises:
            Finding: as `finish`.
        """
        draws, inputs, outputs = trial.stock.draws(regime), samples.inputs(), samples.outputs()
        part = samples.part
        per_call = sum(tensor[0].numel() for tensor in (*inputs, *outputs))
        at_once = max(1, MAX_ELEMENTS // per_call)
        for first in range(0, len(outputs[0]), at_once):
            some = slice(first, first + at_once)
            kept = _Kept(trial, draws, part.of_sets(some), [t[some] for t in inputs], [t[some] for t in outputs])
            self._kept.append(kept)
            self._elements += per_call * len(outputs[0][some])
            if self._elements > MAX_ELEMENTS:
                self.finish()

    def finish(self) -> None:
        """Recomputes all that was added since it was last finished.

        Raises:
            Finding: something was wrong.
        """
        alike = defaultdict[tuple[torch.Size, ...], list[_Kept]](list)
        for kept in self._kept:
            alike[kept.shapes].append(kept)
        self._kept = []
        self._elements = 0
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
    mismatches = trial.compare(kept.part, kept.outputs, expected, known)
    if mismatches:
        raise Finding(Status.INCORRECT, TIMED_WRONG + feedback.reason(mismatches[0], draws.regime), mismatches)
