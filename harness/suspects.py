"""Which part of a large output to recompute first: where a quick answer of the same precision disagrees most.

Outputs over large weights are recomputed in float64 on a part of them (decision 0006). A random part finds a candidate
that skips many columns, and hardly ever one that gets a single element wrong. The engine's own kernel in the judge's
process costs a hundredth of the reference, and says where to look; what is wrong is decided by the reference alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.definition import Definition


def suspects(
    definition: Definition, axis: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], count: int
) -> Tensor:
    """Places along an axis, in order: those whose outputs differ most from the engine's.

    Args:
        inputs, outputs: whole tensors of one call, without an axis of sets.
    """
    scalars = [scalar.default for scalar in definition.scalars]
    with torch.inference_mode():
        engine = definition.baselines["eager"](*inputs, *scalars)
        scores = [
            _disagreement(found, likely, spec.dims.index(axis))
            for spec, found, likely in zip(definition.outputs, outputs, engine, strict=True)
            if axis in spec.dims
        ]
    worst = torch.stack(scores).amax(0)
    return worst.topk(min(count, worst.numel())).indices.sort().values


def _disagreement(found: Tensor, likely: Tensor, dim: int) -> Tensor:
    """Per place along `dim`, the largest difference relative to the typical size of its row; NaN differs most."""
    exact = likely.to(torch.float32)
    typical = exact.square().mean(dim, keepdim=True).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    off = ((found.to(torch.float32) - exact).abs() / typical).nan_to_num(torch.inf, torch.inf)
    return off.movedim(dim, 0).flatten(1).amax(1)
