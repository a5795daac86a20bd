"""Where the tensors of one workload's sets lie in the shared files, and how a runner is told.

Each tensor of each set has pages of its own and ends where they end; a page may follow that a runner may not touch. It
begins at a multiple of 64 bytes, as memory of an allocator does, or in `slid` sets some bytes behind one, as a view
does.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gristmill.workload import ITEM_BYTES, TensorLayout, Workload, dense
from harness import runner
from harness.errors import HostFaultError
from harness.shared_file import CAPACITY_BYTES, PAGE
from kernels.definition import Definition, Role
from kernels.inputs import is_far
from kernels.layouts import span

ALIGNMENT = 64
SLID_WHOLLY = "slid by one element"
SLID_BYTES = (16, 32)
"""Alignments that vector units have."""
MAX_SETS = 256
GUARDED_SETS = 12
"""Those that correctness is checked on."""
ROTATED_BYTES = 64 << 20
"""Sets rotate over about this much where weights are large: twice the last-level cache of common servers' slices. More
would take each runner longer to map than it changes what is measured.
"""
LARGE_WEIGHT_BYTES = 256 << 10
"""Above this they count as large."""
LINKED_BYTES = 128 << 10
"""Activations up to this size are made anew for each call, which costs as much as a good kernel may take. Larger ones
leave a call little to gain from others.
"""
SMALL_ROTATED_BYTES = 16 << 20
"""Enough for activations: in serving they come from a cache, where the operator before has written them."""
SPARSE_OFFSET = CAPACITY_BYTES // 2
"""From here on inputs lie whose pages are mostly never made."""


class Sets(NamedTuple):
    """How many sets a workload may have."""

    most: int = MAX_SETS
    """What a judge prepares, a runner maps and each batch touches grows with them."""
    least: int = 2
    """That there are even if they rotate over more memory than they need, up to `ROTATED_BYTES`. Batches are as long as
    there are sets, and what it takes to hand over a short one hides part of a small gain."""
    slid: tuple[int, ...] = ()
    """How many bytes behind a multiple of `ALIGNMENT` each tensor begins, inputs and then outputs; none if empty."""
    varied: bool = False
    """Whether scalars have other values than usual."""


ORDINARY = Sets()


@dataclass(frozen=True)
class Place:
    """Where one tensor lies in its region: set k starts at `start + k * pitch`, its pages at `base + k * pitch`."""

    layout: TensorLayout
    base: int
    start: int
    pitch: int

    @property
    def room(self) -> int:
        """Bytes of the pages that belong to one set's tensor; the guard page follows."""
        return self.pitch - PAGE

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.layout.dtype]


@dataclass(frozen=True)
class Layout:
    """All places of one workload, and how many sets there are."""

    workload: Workload
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    sets: int
    scalars: tuple[float, ...]
    weights: tuple[bool, ...]
    slid: bool = False

    @property
    def input_bytes(self) -> int:
        return _end(self.inputs, self.sets)

    @property
    def output_bytes(self) -> int:
        return _end(self.outputs, self.sets)

    @property
    def sparse(self) -> bool:
        return is_far(self.workload)

    @functools.cached_property
    def linked(self) -> bool:
        """Whether each timed call's activations are made from what the call before wrote."""
        return _bytes_of(self.workload, self.weights, False) <= LINKED_BYTES and not self.sparse

    def plan(self, offset: int, *, guarded: int, with_outputs: bool = True) -> bytes:
        """The PLAN of the runner's protocol. A baseline allocates its outputs itself. To be checked, the first sets are
        guarded; where none is, all are mapped at once, and linked.
        """
        outputs = self.outputs if with_outputs else ()
        head = runner.PLAN_HEAD.pack(
            offset,
            self.input_bytes,
            self.output_bytes if with_outputs else 0,
            len(self.inputs),
            len(outputs),
            len(self.scalars),
            self.sets,
            guarded,
            not guarded and not self.sparse,
            self.linked and not guarded,
            0,
        )
        weights = (*self.weights, *(False for _ in outputs))
        tensors = [_describe(p, w) for p, w in zip((*self.inputs, *outputs), weights, strict=True)]
        return b"".join((head, *tensors, struct.pack(f"<{len(self.scalars)}d", *self.scalars)))


def lay_out(definition: Definition, workload: Workload, bounds: Sets = ORDINARY) -> Layout:
    """As many sets as rotate over enough memory, within the bounds, at least two.

    Raises:
        HostFaultError: the workload does not fit into a shared file.
    """
    outputs = tuple(dense(tuple(workload.axes[a] for a in spec.dims), workload.dtype) for spec in definition.outputs)
    weights = tuple(spec.role is Role.WEIGHT for spec in definition.inputs)
    tensors = (*workload.inputs, *outputs)
    slid = bounds.slid or (0,) * len(tensors)
    per_set = sum(_pitch(layout, by) - PAGE for layout, by in zip(tensors, slid, strict=True))
    rotated = ROTATED_BYTES if _bytes_of(workload, weights, True) > LARGE_WEIGHT_BYTES else SMALL_ROTATED_BYTES
    wanted = max(rotated // per_set, min(bounds.least, ROTATED_BYTES // per_set))
    sets = max(2, min(bounds.most, wanted))
    layout = Layout(
        workload=workload,
        inputs=_place(workload.inputs, sets, slid),
        outputs=_place(outputs, sets, slid[len(workload.inputs) :]),
        sets=sets,
        scalars=tuple(scalar.default for scalar in definition.scalars),
        weights=weights,
        slid=any(slid),
    )
    if max(layout.input_bytes, layout.output_bytes) > SPARSE_OFFSET:
        raise HostFaultError(
            f"{workload.label}: {sets} sets exceed {SPARSE_OFFSET >> 30} GiB; judge a smaller workload"
        )
    return layout


def _bytes_of(workload: Workload, weights: Sequence[bool], of_weights: bool) -> int:
    return sum(_size(layout) for layout, weight in zip(workload.inputs, weights, strict=True) if weight is of_weights)


def slides(definition: Definition, dtype: str) -> dict[str, tuple[int, ...]]:
    """Ways in which tensors of a call can begin elsewhere than at a multiple of `ALIGNMENT`, by what is said of them. A
    kernel that looks at an address may look for too little, or at one tensor's alone.
    """
    names = [spec.name for spec in (*definition.inputs, *definition.outputs)]
    item_bytes = ITEM_BYTES[dtype]
    single = {
        f"{name} slid by one element": tuple(item_bytes if other == name else 0 for other in names) for name in names
    }
    return {
        SLID_WHOLLY: (item_bytes,) * len(names),
        **{f"slid by {by} bytes": (by,) * len(names) for by in SLID_BYTES},
        **(single if len(names) > 1 else {}),
    }


def _size(layout: TensorLayout, slid: int = 0) -> int:
    """Bytes from the first element to the last, and those before them if slid, in whole alignment units."""
    return -(-(span(layout) * ITEM_BYTES[layout.dtype] + slid) // ALIGNMENT) * ALIGNMENT


def _pitch(layout: TensorLayout, slid: int) -> int:
    return (-(-_size(layout, slid) // PAGE) + 1) * PAGE


def _place(layouts: Sequence[TensorLayout], sets: int, slid: Sequence[int]) -> tuple[Place, ...]:
    """One after the other; each tensor ends where its guard page begins."""
    places = []
    base = 0
    for layout, by in zip(layouts, slid, strict=False):
        pitch = _pitch(layout, by)
        start = base + pitch - PAGE - _size(layout, by) + by
        places.append(Place(layout, base, start, pitch))
        base += sets * pitch
    return tuple(places)


def _end(places: Sequence[Place], sets: int) -> int:
    return max((place.base + sets * place.pitch for place in places), default=0)


def _describe(place: Place, weight: bool) -> bytes:
    layout = place.layout
    missing = runner.MAX_RANK - len(layout.shape)
    shape, strides = (*layout.shape, *[1] * missing), (*layout.strides, *[0] * missing)
    code = runner.DTYPE_CODES[layout.dtype]
    return runner.PLAN_TENSOR.pack(
        code, len(layout.shape), *shape, *strides, place.base, place.start, place.pitch, weight
    )
