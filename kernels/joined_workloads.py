"""Few workloads for many: a profile names no more call patterns than fit, and loses no call.

What is joined differs in the number of tokens (or rows) alone, and by little; shapes, dtypes and density stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gristmill.workload import Workload
from kernels import sketch

MAX_WORKLOADS = 1024
"""Of a profile; about 350 kB of JSON."""
COARSER = ((sketch.EXACT_TOKENS, sketch.SIGNIFICANT_BITS), (16, 4), (8, 3), (4, 2), (1, 1))
"""How they are joined until there is room: tokens exact up to so many, so many binary digits above."""


def joined(workloads: Sequence[Workload], most: int = MAX_WORKLOADS) -> list[Workload]:
    """The same calls and time on no more workloads than that, if shapes allow: where there are too many, those with
    nearly as many tokens (or rows) become one, which is the one of them that took the most time.
    """
    found = list(workloads)
    for exact, bits in COARSER:
        if len(found) <= most:
            break
        groups: dict[tuple[object, ...], list[Workload]] = {}
        for one in found:
            stream, tokens = sketch.stream_of(one.operator, one.dtype, one.axes)
            layout = tuple((item.dtype, item.contiguous) for item in one.inputs)
            groups.setdefault((stream, layout, sketch.bucket(tokens, exact, bits)), []).append(one)
        found = [
            replace(
                _heaviest(group),
                calls=sum(w.calls for w in group),
                time_ns=sum(w.time_ns for w in group),
            )
            for group in groups.values()
        ]
    return found


def _heaviest(group: Sequence[Workload]) -> Workload:
    """The most time, then the most calls; of those that are equal in both, always the same one."""
    most = max((w.time_ns, w.calls) for w in group)
    return max((w for w in group if (w.time_ns, w.calls) == most), key=lambda w: w.digest)
