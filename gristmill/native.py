"""Calling a compiled kernel: the ctypes mirror of `abi/gristmill_kernel.h`.

A call is built once per thread and shape; each run then writes one pointer per tensor and jumps.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill import sealed_object
from gristmill.errors import NativeKernelError
from gristmill.workload import TensorLayout

if TYPE_CHECKING:
    from torch import Tensor

MAX_RANK = 4
DTYPE_CODES = {"float32": 1, "bfloat16": 2, "float64": 3, "int32": 4, "int64": 5}
PACKED_ALIGNMENT_BYTES = 64


class GmTensor(ctypes.Structure):
    """`gm_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
    )


class GmCall(ctypes.Structure):
    """`gm_call`."""

    _fields_ = (
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
    )


TENSOR_WORDS = ctypes.sizeof(GmTensor) // 8
PACKED_WORD = 3


class CallFrame:
    """One prebuilt call. Belongs to one thread; shapes, strides and scalars are fixed, pointers change.

    A run writes each tensor's address to `words`, `TENSOR_WORDS` apart, inputs first, and calls `function(address)`.
    The tensors are not kept alive by the frame: the caller holds them until it returns.
    """

    __slots__ = ("_block", "_call", "_scalars", "address", "call_words", "function", "hits", "next_shadow", "words")

    def __init__(
        self,
        function: Any,
        inputs: Sequence[TensorLayout],
        outputs: Sequence[TensorLayout],
        scalars: Sequence[float],
    ) -> None:
        layouts = (*inputs, *outputs)
        self.function = function
        self._block = (GmTensor * len(layouts))(*map(_descriptor, layouts))
        self.words = memoryview(self._block).cast("B").cast("q")
        self._scalars = (ctypes.c_double * max(1, len(scalars)))(*scalars)
        base = ctypes.addressof(self._block)
        self._call = GmCall(base, base + ctypes.sizeof(GmTensor) * len(inputs), ctypes.addressof(self._scalars), None)
        self.call_words = memoryview(self._call).cast("B").cast("q")
        self.address = ctypes.c_void_p(ctypes.addressof(self._call))
        self.hits = 0
        self.next_shadow = 0

    def use_packed(self, address: int) -> None:
        """Names the packed weights of the next run; 0 for none."""
        self.call_words[PACKED_WORD] = address

    def run(self, tensors: Sequence[Tensor]) -> int:
        """Runs the kernel on inputs then outputs; 0 on success. Extents and strides must be the frame's."""
        words = self.words
        position = 0
        for tensor in tensors:
            words[position] = tensor.data_ptr()
            position += TENSOR_WORDS
        code: int = self.function(self.address)
        return code

    def point_only_at(self, index: int, tensor: Tensor) -> ctypes.c_void_p:
        """Clears every data pointer but one, as a setup phase sees the call; returns the call's address."""
        for position in range(0, len(self.words), TENSOR_WORDS):
            self.words[position] = 0
        self.words[index * TENSOR_WORDS] = tensor.data_ptr()
        return self.address


class NativeKernel:
    """A loaded shared object that exports the C ABI.

    Raises:
        NativeKernelError: as `sealed_object.load`, or it lacks a symbol.
    """

    def __init__(self, path: Path, needs_setup: bool, sha256: str = "") -> None:
        self.path = path
        self.needs_setup = needs_setup
        self._library = sealed_object.load(path, sha256)
        self.function = self._symbol("gm_run", ctypes.c_int32, 1)
        if needs_setup:
            self._packed_bytes = self._symbol("gm_packed_bytes", ctypes.c_int64, 1)
            self._setup = self._symbol("gm_setup", ctypes.c_int32, 2)
        self._local = threading.local()

    def _symbol(self, name: str, result: Any, arguments: int) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NativeKernelError(f"kernel {self.path}: exports no {name}, which its table entry needs") from None
        function.restype = result
        function.argtypes = (ctypes.c_void_p,) * arguments
        return function

    def frame(
        self, inputs: Sequence[TensorLayout], outputs: Sequence[TensorLayout], scalars: Sequence[float]
    ) -> CallFrame:
        """A new frame for the calling thread."""
        return CallFrame(self.function, inputs, outputs, scalars)

    def run(
        self,
        inputs: Sequence[Tensor],
        scalars: Sequence[float],
        outputs: Sequence[Tensor],
        packed: Tensor | None = None,
    ) -> int:
        """One call without a prepared frame: frames are cached per thread by shape. 0 on success."""
        frames = self._local.__dict__.setdefault("frames", {})
        key = (tuple((t.shape, t.stride(), t.dtype) for t in (*inputs, *outputs)), tuple(scalars))
        frame = frames.get(key)
        if frame is None:
            frame = frames[key] = self.frame([*map(layout_of, inputs)], [*map(layout_of, outputs)], scalars)
        frame.use_packed(packed.data_ptr() if packed is not None else 0)
        code: int = frame.run((*inputs, *outputs))
        return code

    def setup(
        self,
        inputs: Sequence[TensorLayout],
        outputs: Sequence[TensorLayout],
        scalars: Sequence[float],
        weight_index: int,
        weight: Tensor,
    ) -> Tensor:
        """Packs one weight: a byte tensor aligned to 64 that we own.

        Raises:
            NativeKernelError: the kernel refused.
        """
        import torch

        frame = self.frame(inputs, outputs, scalars)
        address = frame.point_only_at(weight_index, weight)
        size_bytes = int(self._packed_bytes(address))
        if size_bytes < 0:
            raise NativeKernelError(f"kernel {self.path}: gm_packed_bytes returned {size_bytes} for {inputs}")
        raw = torch.empty(size_bytes + PACKED_ALIGNMENT_BYTES, dtype=torch.uint8)
        start = -raw.data_ptr() % PACKED_ALIGNMENT_BYTES
        packed = raw[start : start + size_bytes]
        code = int(self._setup(address, ctypes.c_void_p(raw.data_ptr() + start)))
        if code:
            raise NativeKernelError(f"kernel {self.path}: gm_setup returned {code}; expected 0")
        return packed


def layout_of(tensor: Tensor) -> TensorLayout:
    """Shape, strides and element type of a torch tensor."""
    return TensorLayout(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."))


def _descriptor(layout: TensorLayout) -> GmTensor:
    rank = len(layout.shape)
    if rank > MAX_RANK or layout.dtype not in DTYPE_CODES:
        raise NativeKernelError(
            f"tensor of rank {rank} and type {layout.dtype}: the C ABI takes up to rank {MAX_RANK} of {[*DTYPE_CODES]}"
        )
    shape = (*layout.shape, *(1,) * (MAX_RANK - rank))
    strides = (*layout.strides, *(0,) * (MAX_RANK - rank))
    return GmTensor(
        None,
        DTYPE_CODES[layout.dtype],
        rank,
        (ctypes.c_int64 * MAX_RANK)(*shape),
        (ctypes.c_int64 * MAX_RANK)(*strides),
    )
