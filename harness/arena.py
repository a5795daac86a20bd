"""The judge's side of the shared buffers: K sets of one workload's tensors, poisoned, refreshed and inspected.

Inputs live in one file in memory that only the judge may write: runners get a descriptor that cannot be mapped
writable. Outputs live in a file of their own per runner. Each tensor of each set has pages of its own and ends at a
page that a runner may not touch, so that reading or writing past the end is a crash and not luck.

Shape suffixes: S sets, then the tensor's own dimensions.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gristmill.workload import ITEM_BYTES, TensorLayout, Workload, dense
from harness.errors import HostFaultError
from kernels.definition import Definition, Role

PAGE = mmap.PAGESIZE
ALIGNMENT = 64
MAX_SETS = 512
ROTATED_BYTES = 96 << 20
"""Sets rotate over about this much: three times the last-level cache of common servers' slices."""
CAPACITY_BYTES = 8 << 30
"""Of address space per shared file; memory is taken only where it is written."""
F_SEAL_FUTURE_WRITE = 0x10
POISON = {4: -0x5A5A5B, 2: -0x5B, 8: -0x5A5A5A5A5A5A5B}
"""By item size: a bit pattern that is NaN in float32, bfloat16 and float64."""
BITS = {4: torch.int32, 2: torch.int16, 8: torch.int64}


class SharedFile:
    """A file in memory of fixed size; `reader` is a descriptor that runners get.

    Raises:
        HostFaultError: the host grants no such file.
    """

    def __init__(self, name: str, writable_by_runner: bool) -> None:
        try:
            self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.fchmod(self._fd, 0o600)
            os.ftruncate(self._fd, CAPACITY_BYTES)
            self.memory = mmap.mmap(self._fd, CAPACITY_BYTES)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            seals |= fcntl.F_SEAL_SEAL | (0 if writable_by_runner else F_SEAL_FUTURE_WRITE)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
            self.reader = self._fd if writable_by_runner else os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY)
        except OSError as error:
            raise HostFaultError(f"arena: cannot make a shared file in memory ({error}); free memory") from None
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    def close(self) -> None:
        """Gives the descriptors back; the memory goes with the last tensor over it."""
        if self._fd >= 0:
            del self.bytes, self.memory
            if self.reader != self._fd:
                os.close(self.reader)
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True)
class Place:
    """Where one tensor lies in its file: set k starts at `start + k * pitch`, its pages at `base + k * pitch`."""

    layout: TensorLayout
    base: int
    start: int
    pitch: int

    @property
    def room(self) -> int:
        """Bytes of the pages that belong to one set's tensor; the guard page follows."""
        return self.pitch - PAGE

    def guards(self, sets: int) -> list[int]:
        return [self.base + number * self.pitch + self.room for number in range(sets)]


@dataclass(frozen=True)
class Layout:
    """All places of one workload, and how many sets there are."""

    workload: Workload
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    sets: int
    scalars: tuple[float, ...]
    weights: tuple[bool, ...]

    def message(self, with_outputs: bool) -> dict[str, Any]:
        """The PLAN of the runner's protocol. A baseline allocates its outputs itself."""
        outputs = self.outputs if with_outputs else ()
        return {
            "inputs": [_describe(place.layout) for place in self.inputs],
            "outputs": [_describe(place.layout) for place in outputs],
            "scalars": list(self.scalars),
            "weights": list(self.weights),
            "sets": self.sets,
            "places": [[place.start, place.pitch] for place in (*self.inputs, *outputs)],
            "input_bytes": _end(self.inputs, self.sets),
            "output_bytes": _end(outputs, self.sets),
            "input_guards": [guard for place in self.inputs for guard in place.guards(self.sets)],
            "output_guards": [guard for place in outputs for guard in place.guards(self.sets)],
        }


def lay_out(definition: Definition, workload: Workload, max_sets: int = MAX_SETS) -> Layout:
    """As many sets as rotate over `ROTATED_BYTES`, at least two, at most `max_sets`.

    Raises:
        HostFaultError: the workload does not fit into a shared file.
    """
    outputs = tuple(dense(tuple(workload.axes[a] for a in spec.dims), workload.dtype) for spec in definition.outputs)
    per_set = sum(_pitch(layout) - PAGE for layout in (*workload.inputs, *outputs))
    sets = max(2, min(max_sets, ROTATED_BYTES // per_set))
    layout = Layout(
        workload=workload,
        inputs=_place(workload.inputs, sets),
        outputs=_place(outputs, sets),
        sets=sets,
        scalars=tuple(scalar.default for scalar in definition.scalars),
        weights=tuple(spec.role is Role.WEIGHT for spec in definition.inputs),
    )
    if max(_end(layout.inputs, sets), _end(layout.outputs, sets)) > CAPACITY_BYTES:
        raise HostFaultError(
            f"{workload.label}: {sets} sets exceed {CAPACITY_BYTES >> 30} GiB; judge a smaller workload"
        )
    return layout


class Arena:
    """One workload's buffers in one file, seen as tensors with the sets in front."""

    def __init__(self, file: SharedFile, places: Sequence[Place], sets: int) -> None:
        self.sets = sets
        self.tensors = [_tensor_view(file, place, sets) for place in places]
        self._pages = [_page_view(file, place, sets) for place in places]
        self._places = places

    def poison(self, numbers: Tensor) -> None:
        """Fills those sets, and all that lies around them in their pages, with NaN of a known pattern."""
        for pages_SP, place in zip(self._pages, self._places, strict=True):
            pages_SP.index_fill_(0, numbers, POISON[_item_bytes(place)])

    def poisoned(self, numbers: Tensor) -> list[Tensor]:
        """Per tensor, how many elements of each of those sets still hold poison."""
        counts = []
        for tensor, place in zip(self.tensors, self._places, strict=True):
            left_SN = (_bits(tensor[numbers]) == POISON[_item_bytes(place)]).flatten(1)
            # Counting is slow, and seldom needed.
            counts.append(left_SN.sum(1) if bool(left_SN.any()) else torch.zeros(len(numbers), dtype=torch.int64))
        return counts

    def spilled(self, numbers: Tensor) -> list[Tensor]:
        """Per tensor, which of those sets had bytes written around them."""
        spilled = []
        for pages_SP, place in zip(self._pages, self._places, strict=True):
            item_bytes = _item_bytes(place)
            first = (place.start - place.base) // item_bytes
            last = first + _span(place.layout)
            flags_S = torch.zeros(len(numbers), dtype=torch.bool)
            for around_SP in (pages_SP[:, :first], pages_SP[:, last:]):
                if around_SP.shape[1]:
                    flags_S |= (around_SP[numbers] != POISON[item_bytes]).any(1)
            spilled.append(flags_S)
        return spilled


def _item_bytes(place: Place) -> int:
    return ITEM_BYTES[place.layout.dtype]


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.element_size()])


def _span(layout: TensorLayout) -> int:
    return 1 + sum((extent - 1) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True))


def _size(layout: TensorLayout) -> int:
    """Bytes from the first element to the last, in whole alignment units."""
    return -(-_span(layout) * ITEM_BYTES[layout.dtype] // ALIGNMENT) * ALIGNMENT


def _pitch(layout: TensorLayout) -> int:
    return (-(-_size(layout) // PAGE) + 1) * PAGE


def _place(layouts: Sequence[TensorLayout], sets: int) -> tuple[Place, ...]:
    """One after the other; each tensor ends where its guard page begins."""
    places = []
    base = 0
    for layout in layouts:
        pitch = _pitch(layout)
        places.append(Place(layout, base, base + pitch - PAGE - _size(layout), pitch))
        base += sets * pitch
    return tuple(places)


def _end(places: Sequence[Place], sets: int) -> int:
    return max((place.base + sets * place.pitch for place in places), default=0)


def _describe(layout: TensorLayout) -> dict[str, Any]:
    return {"dtype": layout.dtype, "shape": list(layout.shape), "strides": list(layout.strides)}


def _typed(file: SharedFile, start: int, end: int, dtype: torch.dtype) -> Tensor:
    return file.bytes[start:end].view(dtype)


def _tensor_view(file: SharedFile, place: Place, sets: int) -> Tensor:
    item_bytes = _item_bytes(place)
    flat = _typed(file, place.start, place.base + sets * place.pitch, getattr(torch, place.layout.dtype))
    return flat.as_strided((sets, *place.layout.shape), (place.pitch // item_bytes, *place.layout.strides))


def _page_view(file: SharedFile, place: Place, sets: int) -> Tensor:
    item_bytes = _item_bytes(place)
    flat = _typed(file, place.base, place.base + sets * place.pitch, BITS[item_bytes])
    return flat.as_strided((sets, place.room // item_bytes), (place.pitch // item_bytes, 1))
