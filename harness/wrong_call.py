"""One call with wrong elements, and whether another answer explains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness import comparer
from harness.comparer import ErrorFacts, Expected
from kernels.definition import Definition

MATCHED = 0.9
"""Share of the wrong elements that a mistake must explain."""
TELLING = 3
"""Elements at least that are neither zero nor infinite, where whole tensors are read in another way."""


@dataclass(frozen=True)
class WrongCall:
    """One call with its wrong elements, in float64."""

    definition: Definition
    inputs: tuple[Tensor, ...]
    scalars: tuple[float, ...]
    output: int
    found: Tensor
    """The one output that is looked at."""
    wanted: Expected
    facts: ErrorFacts
    factor: float
    wrong: Tensor
    """Which elements differ."""

    def answer(self, inputs: Sequence[Tensor], scalars: Sequence[float] | None = None) -> Tensor:
        """What the definition gives for other inputs."""
        exact = [tensor.to(torch.float64) for tensor in inputs]
        results = self.definition.reference(*exact, *(self.scalars if scalars is None else scalars))
        return results[self.output]

    def in_float32(self, inputs: Sequence[Tensor], dtype: torch.dtype) -> Expected:
        """What a kernel gives that computes in float32 and writes that dtype, overflow and all, for other inputs."""
        rough = [tensor.to(torch.float32) for tensor in inputs]
        values = self.definition.reference(*rough, *self.scalars)[self.output]
        scale = self.definition.error_scale(*rough, *self.scalars)[self.output]
        return Expected(values.to(dtype).to(torch.float64)[None], scale.to(torch.float64)[None], dtype)

    @property
    def right(self) -> bool:
        """Whether the rule finds nothing, not even in the means."""
        found = self.found[None]
        return comparer.compare(found, self.wanted, self.facts, workload="", output="", factor=self.factor) is None

    def explained(self, answer: Tensor, where: Tensor | None = None) -> bool:
        """Whether the wrong elements, or those of them that lie in `where`, are this answer's."""
        wrong = self.wrong if where is None else self.wrong & where
        if answer.shape != self.found.shape or not bool(wrong.any()):
            return False
        return self._share(self.found, Expected(answer[None], self.wanted.scale, self.wanted.dtype), wrong) >= MATCHED

    def is_read_as(self, found: Tensor, other: Expected) -> bool:
        """Whether `found`, the wrong elements or what lies in their memory, is a whole other answer, and no trivial
        one.
        """
        values = other.values[0]
        telling = torch.isfinite(values) & torch.isfinite(other.scale[0]) & (values != 0)
        if int(telling.sum()) < min(TELLING, values.numel()):
            return False
        where = self.wrong if found is self.found else torch.ones_like(self.wrong)
        shares = [self._share(found, other, part) for part in (where, where & telling)]
        return min(shares) >= MATCHED

    def _share(self, found: Tensor, other: Expected, where: Tensor) -> float:
        """Of the elements in `where`, how many are this answer's."""
        if not bool(where.any()):
            return 0.0
        ratios = comparer.element_ratios(comparer.deviate(found[None], other), self.facts, self.factor)[0]
        return float((ratios <= 1)[where].to(torch.float32).mean())
