"""The judge's side of the shared buffers: K sets of one workload's tensors, filled, changed, poisoned and inspected.

Inputs live in one file in memory that only the judge may write: runners get a descriptor that cannot be mapped
writable. Outputs live in a file of their own per runner. Behind the sets that are checked lies a page that a runner may
not touch, so that reading or writing past the end is a crash and not luck.

Shape suffixes: S sets, P places, then the tensor's own dimensions.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from ctypes import CDLL
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gristmill.workload import ITEM_BYTES, dense
from harness import runner
from harness.comparer import Expected, Rule
from harness.layout import Layout, Place
from harness.native import AnswerTensor, ComparerRule, InputTensor, Native, OutputTensor, Words
from harness.shared_file import SharedFile
from kernels.layouts import span

Numbers = NDArray[np.uint32]
"""Of buffer sets."""
Places = NDArray[np.int64]
"""Along an axis."""

WHOLE = np.zeros(1, np.int64)
"""The one place of a set that is copied in one piece."""
CUT_ROOM = 64
"""Sets for whose copies there is room at first."""
LINK_CALLS = 64
LINK_REPETITIONS = 8
POISON = {4: -0x5A5A5B, 2: -0x5B, 8: -0x5A5A5A5A5A5A5B}
"""By item size: a bit pattern that is NaN in float32, bfloat16 and float64; `native/arena.c` has the same."""
BITS = {4: torch.int32, 2: torch.int16, 8: torch.int64}


@dataclass(frozen=True)
class Walk:
    """Which sets were called, in order, and from what each call's activations were made; and which were not called."""

    called: Numbers
    states: NDArray[np.uint64]
    decoys: Numbers


class InputArena:
    """One workload's inputs, seen as tensors with the sets in front."""

    def __init__(self, native: Native, file: SharedFile, layout: Layout, offset: int) -> None:
        self.layout = layout
        self.offset = offset
        self.tensors = [_tensor_view(file, place, layout.sets, offset) for place in layout.inputs]
        self._arena = native.arena
        self._chain = runner.Chain()
        self._linked = [index for index, weight in enumerate(layout.weights) if not weight] if layout.linked else []
        for index in self._linked:
            place = layout.inputs[index]
            shape, strides, start = place.layout.shape, place.layout.strides, file.address + offset + place.start
            self._chain.add_input(start, place.pitch, shape, strides, place.layout.dtype, 0)
        if not layout.sparse:  # what lies between elements is NaN, so that a kernel which reads it shows
            item_bytes = ITEM_BYTES[layout.workload.dtype]
            file.bytes[offset : offset + layout.input_bytes].view(BITS[item_bytes]).fill_(POISON[item_bytes])

    def cell(self, index: int, bases: Tensor) -> InputTensor:
        """How native code sees one input and its base draws (base, then the tensor's dimensions, dense)."""
        place, tensor = self.layout.inputs[index], self.tensors[index]
        shape, strides = place.layout.shape, place.layout.strides
        base_strides = dense(shape, place.layout.dtype).strides
        distinct = tuple(1 if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True))
        missing = runner.MAX_RANK - len(shape)
        return InputTensor(
            tensor.data_ptr(),
            place.pitch,
            place.item_bytes,
            Words(*[1] * missing, *distinct),
            Words(*[0] * missing, *strides),
            Words(*[0] * missing, *base_strides),
            bases.data_ptr(),
            bases.shape[0],
            bases[0].numel(),
        )

    def fill(self, cell: InputTensor, numbers: Numbers, cases: NDArray[np.int64]) -> None:
        """Set `numbers[n]` becomes base draw `cases[n]`."""
        self._arena.fill(ctypes.byref(cell), numbers.ctypes.data, len(numbers), cases.ctypes.data)

    def fill_sets(
        self,
        groups: ctypes.Array[InputTensor],
        which: NDArray[np.int64],
        numbers: Numbers,
        cases: NDArray[np.int64],
    ) -> None:
        """Set `numbers[n]` becomes base draw `cases[n]` of the group `which[n]`: groups hold one cell per input."""
        inputs = len(self.tensors)
        self._arena.fill_sets(groups, inputs, which.ctypes.data, numbers.ctypes.data, len(numbers), cases.ctypes.data)

    def renew(self, cell: InputTensor, numbers: Numbers, state: ctypes.c_uint64) -> None:
        """Every value of those sets becomes a new one: a base draw's, times a random number around one."""
        self._arena.renew(ctypes.byref(cell), numbers.ctypes.data, len(numbers), ctypes.byref(state))

    def made(self, numbers: Numbers, states: NDArray[np.uint64]) -> dict[int, Tensor]:
        """By input, what those linked calls were given, sets in front. Inputs that are not here lie in the buffers."""
        tensors = {}
        for place, index in enumerate(self._linked):
            layout = self.layout.inputs[index].layout
            memory = torch.empty((len(numbers), span(layout)), dtype=getattr(torch, layout.dtype))
            pitch = memory.stride(0) * memory.element_size()
            chain = ctypes.byref(self._chain)
            self._arena.remake(
                chain, place, numbers.ctypes.data, states.ctypes.data, len(numbers), memory.data_ptr(), pitch
            )
            tensors[index] = memory.as_strided((len(numbers), *layout.shape), (memory.stride(0), *layout.strides))
        return tensors

    def made_rows(
        self, numbers: Numbers, states: NDArray[np.uint64], places_SP: NDArray[np.int64]
    ) -> dict[int, Tensor]:
        """Likewise of those places of the first dimension only, dense. None of it may be expanded."""
        tensors = {}
        for place, index in enumerate(self._linked):
            layout = self.layout.inputs[index].layout
            shape = (*places_SP.shape, *layout.shape[1:])
            memory = torch.empty(shape, dtype=getattr(torch, layout.dtype))
            per_place = math.prod(layout.shape[1:-1])
            rows = np.ascontiguousarray(places_SP[:, :, None] * per_place + np.arange(per_place))
            chain, to = ctypes.byref(self._chain), memory.data_ptr()
            sources = numbers.ctypes.data, states.ctypes.data, len(numbers)
            self._arena.remake_rows(chain, place, *sources, rows.ctypes.data, rows[0].size, to)
            tensors[index] = memory
        return tensors

    @property
    def rows_can_be_made(self) -> bool:
        """Whether `made_rows` can do what `made` does."""
        layouts = [self.layout.inputs[index].layout for index in self._linked]
        return all(len(one.shape) > 1 and 0 not in one.strides for one in layouts)

    def link_ns(self) -> float:
        """What it costs a runner at least to follow the chain and to make the activations of one call."""
        chain, memories = runner.Chain(linked=self.layout.linked), []
        for index in self._linked:
            place = self.layout.inputs[index]
            memories.append(torch.empty(span(place.layout), dtype=getattr(torch, place.layout.dtype)))
            start, to = self.tensors[index].data_ptr(), memories[-1].data_ptr()
            chain.add_input(start, place.pitch, place.layout.shape, place.layout.strides, place.layout.dtype, to)
        for place in self.layout.outputs:
            memories.append(torch.zeros(place.layout.shape, dtype=getattr(torch, place.layout.dtype)))
            chain.add_output(memories[-1].data_ptr(), 0, place.layout.shape, place.layout.dtype)
        calls = min(self.layout.sets, LINK_CALLS)
        called, states = np.empty(calls, np.uint32), np.empty(calls, np.uint64)
        best_ns = math.inf
        for repetition in range(LINK_REPETITIONS):
            pool = np.arange(self.layout.sets, dtype=np.uint32)
            chain.restart(repetition, pool.ctypes.data, len(pool))
            start_ns = time.perf_counter_ns()
            self._arena.walk(ctypes.byref(chain), calls, called.ctypes.data, states.ctypes.data)
            best_ns = min(best_ns, (time.perf_counter_ns() - start_ns) / calls)
        return best_ns

    def change(self, cell: InputTensor, numbers: Numbers, changes: int, most_rows: int, state: ctypes.c_uint64) -> None:
        """In those sets, each row (at most so many) gets other draws' values at a few random places."""
        self._arena.change(
            ctypes.byref(cell), numbers.ctypes.data, len(numbers), changes, most_rows, ctypes.byref(state)
        )


class Cut:
    """Copies of some sets of a tensor, as they were when they were taken: whole, or so many places of the first
    dimension.
    """

    def __init__(self, arena: CDLL, tensor: Tensor, places: int = 0) -> None:
        shape = (places, *tensor.shape[2:]) if places else tensor.shape[1:]
        item_bytes = tensor.element_size()
        self._copy = arena.cut
        self._memory = torch.empty((CUT_ROOM, *shape), dtype=tensor.dtype)
        self._end, self._room = 0, CUT_ROOM
        self._per_set = math.prod(shape) * item_bytes
        self._from = tensor.data_ptr(), tensor.stride(0) * item_bytes
        self._in_parts = places > 0
        self._piece = (tensor.stride(1) * item_bytes, self._per_set // places) if places else (0, self._per_set)
        self._to = self._memory.data_ptr()

    def take(self, numbers: Numbers, places_P: Places) -> None:
        """Of those sets, behind what was taken before; of whole sets the places do not matter."""
        first, self._end = self._end, self._end + len(numbers)
        while self._end > self._room:
            self._memory = torch.cat((self._memory, torch.empty_like(self._memory)))
            self._to, self._room = self._memory.data_ptr(), 2 * self._room
        pieces = (places_P.ctypes.data, len(places_P)) if self._in_parts else (WHOLE.ctypes.data, 1)
        to = self._to + first * self._per_set
        self._copy(*self._from, numbers.ctypes.data, len(numbers), *pieces, *self._piece, to)

    @property
    def taken(self) -> Tensor:
        """Sets in front."""
        return self._memory[: self._end]


class OutputArena:
    """One workload's outputs in a runner's file, seen as tensors with the sets in front."""

    def __init__(self, native: Native, file: SharedFile, layout: Layout) -> None:
        self.sets = layout.sets
        self.tensors = [_tensor_view(file, place, layout.sets, 0) for place in layout.outputs]
        self.sizes = [math.prod(place.layout.shape) for place in layout.outputs]
        self._arena = native.arena
        self._cells = (OutputTensor * len(self.sizes))(
            *(
                OutputTensor(
                    file.address + place.base,
                    place.pitch,
                    place.room,
                    place.start - place.base,
                    size * place.item_bytes,
                    place.item_bytes,
                )
                for place, size in zip(layout.outputs, self.sizes, strict=True)
            )
        )
        self._chain = runner.Chain()
        for place in layout.outputs:
            self._chain.add_output(file.address + place.start, place.pitch, place.layout.shape, place.layout.dtype)

    def poison(self, numbers: Numbers) -> None:
        """Fills those sets, and all that lies around them in their pages, with NaN of a known pattern."""
        for cell in self._cells:
            self._arena.poison(ctypes.byref(cell), numbers.ctypes.data, len(numbers))

    def inspect(self, numbers: Numbers) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Per tensor and set: how many elements still hold poison, and whether anything around them does not."""
        seen = []
        for cell in self._cells:
            left = np.empty(len(numbers), np.int64)
            spilled = np.empty(len(numbers), np.bool_)
            self._arena.inspect(
                ctypes.byref(cell), numbers.ctypes.data, len(numbers), left.ctypes.data, spilled.ctypes.data
            )
            seen.append((left, spilled))
        return seen

    def accepts(
        self,
        groups: ctypes.Array[AnswerTensor],
        which: NDArray[np.int64],
        numbers: Numbers,
        cases: NDArray[np.int64],
    ) -> bool:
        """Whether all outputs of those sets are surely right, where set `numbers[n]` holds base draw `cases[n]` of the
        group `which[n]`; if not, the comparer has to look.
        """
        return bool(
            self._arena.accept(
                self._cells,
                groups,
                len(self._cells),
                which.ctypes.data,
                numbers.ctypes.data,
                len(numbers),
                cases.ctypes.data,
            )
        )

    def accepts_copies(self, found: Tensor, expected: Expected, rule: Rule) -> bool:
        """Likewise of S copies of one output, dense."""
        assert found.is_contiguous() and found.shape == expected.values.shape
        pitch = found.stride(0) * found.element_size()
        cell = OutputTensor(found.data_ptr(), pitch, pitch, 0, pitch, found.element_size())
        sets = np.arange(len(found))
        zeros, numbers = np.zeros(len(found), np.int64), sets.astype(np.uint32)
        answer = answer_cell(expected, rule)
        addresses = zeros.ctypes.data, numbers.ctypes.data, len(found), sets.ctypes.data
        return bool(self._arena.accept(ctypes.byref(cell), ctypes.byref(answer), 1, *addresses))

    def cut(self, tensor: Tensor, places: int = 0) -> Cut:
        """For copies of sets of a tensor: whole, or so many places of the first dimension."""
        return Cut(self._arena, tensor, places)

    def keep(self, count: int) -> list[Tensor]:
        """Copies of the first sets' outputs."""
        return [tensor[:count].clone() for tensor in self.tensors]

    def unchanged(self, before: Sequence[Tensor], numbers: Numbers) -> bool:
        """Whether the outputs of those sets are what they were when they were kept, bit by bit."""
        return all(
            self._arena.same(
                kept.data_ptr(),
                size * cell.item_bytes,
                tensor.data_ptr(),
                cell.pitch,
                size * cell.item_bytes,
                numbers.ctypes.data,
                len(numbers),
            )
            for kept, tensor, cell, size in zip(before, self.tensors, self._cells, self.sizes, strict=True)
        )

    def survey(self, seed: int, pool: Numbers, calls: int, *, linked: bool) -> tuple[Walk, bool]:
        """What a run must have done, if the outputs are what its calls wrote; and whether `inspect` would find it all
        well: its calls' outputs written, and nothing else.
        """
        consumed, called, states = pool.copy(), np.empty(calls, np.uint32), np.empty(calls, np.uint64)
        self._chain.linked = linked
        self._chain.restart(seed, consumed.ctypes.data, len(consumed))
        well = self._arena.survey(self._chain, self._cells, calls, called.ctypes.data, states.ctypes.data)
        return Walk(called, states, consumed[: len(pool) - calls]), bool(well)


def answer_cell(expected: Expected, rule: Rule) -> AnswerTensor:
    """How native code sees what one output should be, for as long as that lives: it has to be dense."""
    values, scale = expected.values, expected.scale
    assert values.is_contiguous() and scale.is_contiguous() and values.shape == scale.shape
    columns = values.shape[-1] if values.dim() > 1 else 1
    rows = values[0].numel() // max(1, columns)
    return AnswerTensor(values.data_ptr(), scale.data_ptr(), rows, columns, ComparerRule(*rule))


def indices(numbers: Numbers) -> Tensor:
    """The numbers as torch wants them."""
    return torch.from_numpy(numbers.astype(np.int64))


def _tensor_view(file: SharedFile, place: Place, sets: int, offset: int) -> Tensor:
    item_bytes = place.item_bytes
    start, end = offset + place.start, offset + place.base + sets * place.pitch
    flat = file.bytes[start:end].view(getattr(torch, place.layout.dtype))
    return flat.as_strided((sets, *place.layout.shape), (place.pitch // item_bytes, *place.layout.strides))
