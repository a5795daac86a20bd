"""What a search, or a second judgement, is scored on: the few workloads that stand for an operator's traffic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gristmill.workload import Workload
from kernels import catalogue


@dataclass(frozen=True)
class Scope:
    """How many workloads, as each costs a fraction of a second per candidate."""

    per_shape: int
    """For each set of model-fixed axes: a decode step calls a linear layer in five, and none is left to chance."""
    at_least: int
    """Of an operator with few shapes."""

    def limit(self, shapes: int) -> int:
        return max(self.at_least, self.per_shape * shapes)


SEARCH = Scope(per_shape=2, at_least=8)
PROOF = Scope(per_shape=8, at_least=12)


def representative(workloads: Sequence[Workload], scope: Scope) -> tuple[Workload, ...]:
    """The workloads with the most time of each model shape in turn, as many as the scope allows, most time first.

    Whatever order they come in: equal times are told apart by digest.
    """
    shapes: dict[tuple[int, ...], list[Workload]] = {}
    for workload in sorted(workloads, key=_heaviest_first):
        shapes.setdefault(_model_shape(workload), []).append(workload)
    chosen = itertools.islice(_in_turn(shapes.values()), scope.limit(len(shapes)))
    return tuple(sorted(chosen, key=_heaviest_first))


def _heaviest_first(workload: Workload) -> tuple[int, str]:
    return -workload.time_ns, workload.digest


def _in_turn(groups: Iterable[list[Workload]]) -> Iterator[Workload]:
    """The first of every group, then the second of every group, and so on."""
    for row in itertools.zip_longest(*groups):
        yield from (workload for workload in row if workload is not None)


def _model_shape(workload: Workload) -> tuple[int, ...]:
    definition = catalogue.operator(workload.operator)
    return tuple(workload.axes[axis] for axis in definition.constant_axes)
