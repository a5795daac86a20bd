"""What a search, or a second judgement, is scored on: the few workloads that stand for an operator's traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


Doublings = tuple[int, ...]

SEARCH = Scope(per_shape=2, at_least=8)
PROOF = Scope(per_shape=8, at_least=12)


def representative(workloads: Sequence[Workload], scope: Scope) -> tuple[Workload, ...]:
    """As many workloads of each model shape in turn as the scope allows, most time first.

    The first of a shape is the one with the most time. The others are seats that doublings of the varying axes win by
    the operator's time in them (D'Hondt's highest averages): where the two heaviest of every shape are of 4 and of 96
    tokens, nothing would be found for what the fleet runs at 8.

    Whatever order they come in: equal times are told apart by digest.
    """
    shapes: dict[tuple[int, ...], list[Workload]] = {}
    time_ns: Counter[Doublings] = Counter()
    for workload in sorted(workloads, key=_heaviest_first):
        shapes.setdefault(_model_shape(workload), []).append(workload)
        time_ns[_doublings(workload)] += workload.time_ns
    seats: Counter[Doublings] = Counter()
    chosen: list[Workload] = []
    for turn in range(len(workloads)):
        for of_shape in filter(None, shapes.values()):
            best = (
                max(of_shape, key=lambda w: time_ns[_doublings(w)] / (1 + seats[_doublings(w)]))
                if turn
                else of_shape[0]
            )
            of_shape.remove(best)
            seats[_doublings(best)] += 1
            chosen.append(best)
    return tuple(sorted(chosen[: scope.limit(len(shapes))], key=_heaviest_first))


def _heaviest_first(workload: Workload) -> tuple[int, str]:
    return -workload.time_ns, workload.digest


def _model_shape(workload: Workload) -> tuple[int, ...]:
    definition = catalogue.operator(workload.operator)
    return tuple(workload.axes[axis] for axis in definition.constant_axes)


def _doublings(workload: Workload) -> Doublings:
    """For each axis that varies, which doubling its extent is in: 1, 2, 3 and 4, 5 to 8, and so on."""
    definition = catalogue.operator(workload.operator)
    return tuple(
        (extent - 1).bit_length() for axis, extent in workload.axes.items() if axis not in definition.constant_axes
    )
