"""What a search is scored on: the few workloads that stand for an operator's traffic."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.workload import Workload
from kernels import catalogue

LIMIT = 12
"""Workloads a candidate is timed on at most: each costs a fraction of a second per candidate."""


def representative(workloads: Sequence[Workload], limit: int = LIMIT) -> tuple[Workload, ...]:
    """The workloads with the most time, but first one for each set of model-fixed axes.

    A decode step calls a linear layer in five shapes; a search that saw only the largest would leave the others to
    chance.
    """
    ordered = sorted(workloads, key=lambda w: -w.time_ns)
    chosen: dict[str, Workload] = {}
    shapes: set[tuple[int, ...]] = set()
    for workload in ordered:
        shape = _model_shape(workload)
        if shape not in shapes and len(chosen) < limit:
            shapes.add(shape)
            chosen[workload.digest] = workload
    for workload in ordered:
        if len(chosen) < limit:
            chosen.setdefault(workload.digest, workload)
    return tuple(sorted(chosen.values(), key=lambda w: -w.time_ns))


def _model_shape(workload: Workload) -> tuple[int, ...]:
    definition = catalogue.operator(workload.operator)
    return tuple(workload.axes[axis] for axis in definition.constant_axes)
