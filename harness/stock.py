"""What a judge keeps ready of each workload: buffers full of inputs, base draws, references. Candidates come and go.

No call sees a row that an earlier call of the same candidate has seen: in every row of every input some values, or all,
are new, between linked calls in the runner (`native/chain.h`), before each batch here. Weights that a kernel packs in
its declared setup phase stay as they are while it is timed, as in serving, and are those of no other set.
"""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gristmill import records
from gristmill.workload import Workload
from harness.arena import InputArena, Numbers, OutputArena, answer_cell
from harness.comparer import Rule
from harness.draws import Draws, WeightBank
from harness.errors import HostFaultError
from harness.layout import SPARSE_OFFSET, Layout, Sets, lay_out
from harness.native import AnswerTensor, InputTensor, Native
from harness.shared_file import SharedFile
from kernels.definition import Definition

CHANGES = 2
"""Values per row that change between calls on the same buffers. That is too few for what is multiplied by weights: a
product is soon corrected for two of its factors. A norm, or what is computed element by element, gains nothing from
knowing most of its inputs already.
"""
EVERY_ROW = 1 << 62
CHANGED_WEIGHT_ROWS = 4096
"""Of a weight: more of them would take longer than they are worth."""
KEPT_INPUT_BYTES = 768 << 20
"""Buffers of workloads that are kept filled."""
KEPT_DRAWS_BYTES = 512 << 20


class Stock:
    """One workload's buffers, and what fills them."""

    def __init__(
        self,
        native: Native,
        file: SharedFile,
        layout: Layout,
        offset: int,
        definition: Definition,
        seed: int,
        bank: WeightBank,
        draws: dict[str, Draws],
    ) -> None:
        """`draws` are those made of the workload before, by regime: more are added to them."""
        self.layout = layout
        self.definition = definition
        self.inputs = InputArena(native, file, layout, offset)
        self.opponent_ns: dict[tuple[str, int | None], float] = {}
        """Per opponent, and process of it: nanoseconds per call when it was last timed, to size its next batch."""
        self._native = native
        self._seed = seed
        self._bank = bank
        self._draws = draws
        self._cells: dict[tuple[str, int], InputTensor] = {}
        self._groups: dict[tuple[str, ...], ctypes.Array[InputTensor]] = {}
        self._answers: dict[tuple[str | float, ...], ctypes.Array[AnswerTensor] | None] = {}
        self._plans: dict[tuple[int, bool], bytes] = {}
        self._outputs: WeakKeyDictionary[SharedFile, OutputArena] = WeakKeyDictionary()
        self._stale = np.ones(layout.sets, np.bool_)
        """Which sets do not hold traffic values."""
        self._apart = np.zeros(layout.sets, np.bool_)
        """Whose weights are another set's nowhere."""

    @property
    def workload(self) -> Workload:
        return self.layout.workload

    @functools.cached_property
    def link_ns(self) -> float:
        """What following the chain adds to a timed call at least."""
        return self.inputs.link_ns()

    def draws(self, regime: str) -> Draws:
        """The base draws of a regime, made when they are first needed."""
        if regime not in self._draws:
            first = self.definition.regimes[0]
            traffic = self.draws(first) if regime != first else None
            seed = int(records.digest([self._seed, self.workload.digest, regime])[:15], 16)
            self._draws[regime] = Draws(self.definition, self.workload, regime, seed, traffic, self._bank)
        return self._draws[regime]

    @property
    def traffic(self) -> Draws:
        return self.draws(self.definition.regimes[0])

    def plan(self, *, guarded: int = 0, with_outputs: bool = True) -> bytes:
        """`Layout.plan` for these buffers."""
        key = (guarded, with_outputs)
        if key not in self._plans:
            self._plans[key] = self.layout.plan(self.inputs.offset, guarded=guarded, with_outputs=with_outputs)
        return self._plans[key]

    def outputs(self, file: SharedFile) -> OutputArena:
        """The outputs in a runner's file."""
        if file not in self._outputs:
            self._outputs[file] = OutputArena(self._native, file, self.layout)
        return self._outputs[file]

    def fill_cases(
        self, regimes: Sequence[str], which: NDArray[np.int64], numbers: Numbers, cases: NDArray[np.int64]
    ) -> None:
        """Whole base draws, weights too: set `numbers[n]` becomes case `cases[n]` of the regime `regimes[which[n]]`."""
        key = tuple(regimes)
        if key not in self._groups:
            cells = [self._cell(regime, index) for regime in key for index in range(len(self.layout.inputs))]
            self._groups[key] = (InputTensor * len(cells))(*cells)
        self.inputs.fill_sets(self._groups[key], which, numbers, cases)
        self._stale[numbers] = True
        self._apart[numbers] = False

    def answers(self, regimes: Sequence[str], factor: float) -> ctypes.Array[AnswerTensor] | None:
        """What every base draw of those regimes should give, a group per regime, with `factor` times the baseline's
        errors allowed; None where that is not kept.
        """
        key: tuple[str | float, ...] = (*regimes, factor)
        if key not in self._answers:
            every = [self.draws(regime) for regime in regimes]
            cells = [
                answer_cell(answer, Rule.of(facts, answer.dtype, factor))
                for draws in every
                for answer, facts in zip(draws.answers or (), draws.facts, strict=bool(draws.answers))
            ]
            kept = all(draws.answers is not None for draws in every)
            self._answers[key] = (AnswerTensor * len(cells))(*cells) if kept else None
        return self._answers[key]

    def fill_traffic(self, random: np.random.Generator) -> None:
        """Traffic values for the sets that hold others."""
        stale = np.flatnonzero(self._stale).astype(np.uint32)
        for index in range(len(self.layout.inputs)):
            cases = random.integers(0, self.traffic.bases[index].shape[0], len(stale))
            self.inputs.fill(self._cell(self.definition.regimes[0], index), stale, cases)
        self._stale[:] = False

    def renew(self, numbers: Numbers, random: np.random.Generator, *, weights: bool) -> None:
        """Other traffic values in those sets, under the same addresses: a few in every row of a weight, and in every
        row of an activation, unless linked calls get new ones anyway, or it is multiplied: then all are new.
        """
        regime = self.definition.regimes[0]
        state = ctypes.c_uint64(int(random.integers(0, 1 << 63)))
        for index, weight in enumerate(self.layout.weights):
            if weight and weights:
                self.inputs.change(self._cell(regime, index), numbers, CHANGES, CHANGED_WEIGHT_ROWS, state)
            elif not weight and not self.layout.linked:
                cell = self._cell(regime, index)
                if self.definition.independent_axis:
                    self.inputs.renew(cell, numbers, state)
                else:
                    self.inputs.change(cell, numbers, CHANGES, EVERY_ROW, state)

    def tell_apart(self, numbers: Numbers, random: np.random.Generator) -> None:
        """Weights of those sets that no other set has, nor an earlier candidate had: what is packed for one set is no
        other's, and cannot be made of another's by a few corrections.
        """
        state = ctypes.c_uint64(int(random.integers(0, 1 << 63)))
        alike, apart = numbers[~self._apart[numbers]], numbers[self._apart[numbers]]
        for index, weight in enumerate(self.layout.weights):
            if weight:
                cell = self._cell(self.definition.regimes[0], index)
                self.inputs.renew(cell, alike, state)
                self.inputs.change(cell, apart, CHANGES, EVERY_ROW, state)
        self._apart[numbers] = True

    def _cell(self, regime: str, index: int) -> InputTensor:
        if (regime, index) not in self._cells:
            self._cells[regime, index] = self.inputs.cell(index, self.draws(regime).bases[index])
        return self._cells[regime, index]


class Stocks:
    """The stocks of all workloads, in one shared file. When it is full, all of them go."""

    def __init__(self, native: Native, file: SharedFile) -> None:
        self._native = native
        self._file = file
        self._kept: OrderedDict[tuple[str, Sets], Stock] = OrderedDict()
        self._draws: dict[tuple[str, bool], dict[str, Draws]] = {}
        """By workload, whether scalars are varied, and regime: all stocks of one workload have the same."""
        self._end = 0

    def clear(self) -> None:
        self._kept.clear()
        self._draws.clear()
        self._end = 0

    def stock(
        self,
        definition: Definition,
        workload: Workload,
        seed: int,
        bank: WeightBank,
        *,
        sets: Sets,
    ) -> Stock:
        """The stock of a workload with so many sets.

        One judge asks for the same amount each time.

        Raises:
            HostFaultError: it does not fit into the file.
        """
        key = (workload.digest, sets)
        if key not in self._kept:
            definition = definition.varied() if sets.varied else definition
            layout = lay_out(definition, workload, sets)
            drawn = sum(draws.size_bytes for of_one in self._draws.values() for draws in of_one.values())
            if not layout.sparse and (self._end + layout.input_bytes > KEPT_INPUT_BYTES or drawn > KEPT_DRAWS_BYTES):
                self.clear()
            offset = SPARSE_OFFSET if layout.sparse else self._end
            draws = self._draws.setdefault((workload.digest, sets.varied), {})
            stock = Stock(self._native, self._file, layout, offset, definition, seed, bank, draws)
            if not layout.sparse:
                self._end += layout.input_bytes
                if self._end > SPARSE_OFFSET:
                    raise HostFaultError(f"{workload.label}: exceeds the shared file; judge a smaller workload")
            self._kept[key] = stock
        return self._kept[key]
