"""torch.compile of an operator's eager code: the second baseline that every gain is shown against.

It needs a C++ compiler on the PATH, seconds to compile, and writes to torch's own cache folder.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from gristmill.workload import Workload
from kernels import inputs
from kernels.definition import Definition

if TYPE_CHECKING:
    from torch import Tensor

WARM_UP_CALLS = 3
WARM_UP_SEED = 0


def compiled_baseline(
    definition: Definition, dtype: str, workload: Workload | None = None
) -> Callable[..., tuple[Tensor, ...]]:
    """The eager baseline compiled, warmed by calls, so that no timed call compiles.

    With a workload it is specialised to its shapes and strides, the fastest that torch.compile gives; another shape
    compiles again. Without one, it is compiled once for any extents. Call it as it was warmed, or it compiles once
    more: inside `torch.inference_mode()`, with tensors made outside of it.
    """
    import torch

    warm_up = workload or inputs.workload(definition, dtype, **definition.edge_axes[-1])
    compiled = torch.compile(_own_code(definition.baselines["eager"]), dynamic=workload is None)
    generator = torch.Generator().manual_seed(WARM_UP_SEED)
    tensors = inputs.materialise(definition, warm_up, definition.regimes[0], generator)
    with torch.inference_mode():
        for _ in range(WARM_UP_CALLS):
            compiled(*tensors, *(scalar.default for scalar in definition.scalars))
    return cast("Callable[..., tuple[Tensor, ...]]", compiled)


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the function with a code object of its own.

    torch counts recompilations per code object and falls back to eager after eight: the copies do not share that count.
    """
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
