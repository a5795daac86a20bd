"""Memory read, or written, in another way than the call says: other strides, another order, another dtype.

Tensors here are those of one call, without an axis of sets, as views of the memory that the kernel saw.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gristmill.workload import Workload
from harness.wrong_call import WrongCall

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ITEM_BYTES = torch.float32.itemsize


@dataclass(frozen=True)
class Memory:
    """The whole tensors of a call, of which its diagnosis may look at a part."""

    inputs: Sequence[Tensor]
    output: Tensor
    narrow: Callable[[Tensor, Sequence[str]], Tensor]
    """Takes that part of a tensor with those dimensions."""

    def parts(self, call: WrongCall, changed: dict[int, Tensor]) -> list[Tensor]:
        """The call's inputs, with some whole ones replaced."""
        return [
            self.narrow(changed[number], spec.dims) if number in changed else part
            for number, (spec, part) in enumerate(zip(call.definition.inputs, call.inputs, strict=True))
        ]


def misreadings(call: WrongCall, workload: Workload, memory: Memory) -> Iterator[str]:
    """What was read or written in another way, if that explains the answer: likeliest first."""
    yield from _strides(call, workload, memory)
    yield from _orders(call, memory)
    yield from _dtypes(call, memory)


def _strides(call: WrongCall, workload: Workload, memory: Memory) -> Iterator[str]:
    """Inputs read in memory order, whatever their strides say: one of them, then all."""
    names = [spec.name for spec in call.definition.inputs]
    dense = {
        number: read
        for number, layout in enumerate(workload.inputs)
        if not layout.contiguous and (read := read_as_dense(memory.inputs[number])) is not None
    }
    for changed in _one_or_all(dense):
        if call.explained(call.answer(memory.parts(call, changed))):
            strides = ", ".join("x".join(map(str, workload.inputs[number].strides)) for number in changed)
            yield f"matches the answer for {_listed(names, changed)} read as dense: strides ({strides}) are ignored"


def _orders(call: WrongCall, memory: Memory) -> Iterator[str]:
    """One input read with its dimensions in another order."""
    for number, spec in enumerate(call.definition.inputs):
        whole = memory.inputs[number]
        if whole.is_contiguous():
            for order in _other_orders(whole.dim()):
                read = reordered(whole, order)
                if call.explained(call.answer(memory.parts(call, {number: read}))):
                    yield f"matches the answer for {spec.name} read as {' x '.join(spec.dims[dim] for dim in order)}"


def reordered(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The tensor that stands in the memory of a dense one if its dimensions lie there in another order."""
    shape = [tensor.shape[dim] for dim in order]
    return tensor.reshape(shape).permute([list(order).index(dim) for dim in range(tensor.dim())])


def _other_orders(dims: int) -> Iterator[tuple[int, ...]]:
    return itertools.islice(itertools.permutations(range(dims)), 1, None)


def _dtypes(call: WrongCall, memory: Memory) -> Iterator[str]:
    """Inputs read as another dtype, the output written as one, or both. What is right as it stands was neither, though
    halves of single numbers may look like it.
    """
    if not bool(call.wrong.any()):
        return
    own, names = call.found.dtype, [spec.name for spec in call.definition.inputs]
    told = f"tensors of this call are {_name(own)}, {own.itemsize} bytes an element; see gm_tensor.dtype"
    for dtype in DTYPES:
        if dtype is own:
            continue
        read = _read_as(memory, own, dtype)
        written = _written_as(call, memory, dtype)
        for changed in [*_one_or_all(read), {}]:
            inputs = memory.parts(call, changed)
            for found in (call.found, written):
                if found is None or (found is call.found and not changed):
                    continue
                if call.is_read_as(found, call.in_float32(inputs, found.dtype)):
                    ways = [f"{_listed(names, changed)} read as {_name(dtype)}"] if changed else []
                    if found is written:
                        ways.append(f"{call.definition.outputs[call.output].name} written as {_name(dtype)}")
                    yield f"matches the answer with {' and '.join(ways)}: {told}"
    if bool(torch.isnan(call.found).all()) and _reaches_beyond(call, memory):
        yield f"NaN, as elements read as float32 give, for they reach beyond the end of the tensor: {told}"


def _reaches_beyond(call: WrongCall, memory: Memory) -> bool:
    """Whether all is NaN if elements are taken for larger ones: behind the end of a tensor lies nothing else."""
    read = _read_as(memory, call.found.dtype, torch.float32) if call.found.element_size() < ITEM_BYTES else {}
    return bool(read) and bool(torch.isnan(call.in_float32(memory.parts(call, read), torch.float32).values).all())


def _read_as(memory: Memory, own: torch.dtype, dtype: torch.dtype) -> dict[int, Tensor]:
    """The inputs of that dtype, by number, taken for another's."""
    return {
        number: other
        for number, whole in enumerate(memory.inputs)
        if whole.dtype is own and (other := read_as(whole, dtype)) is not None
    }


def _written_as(call: WrongCall, memory: Memory, dtype: torch.dtype) -> Tensor | None:
    other = read_as(memory.output, dtype)
    return None if other is None else memory.narrow(other, call.definition.outputs[call.output].dims)


def read_as_dense(tensor: Tensor) -> Tensor | None:
    """The tensor's memory in order, in its shape; None if its memory ends too early."""
    return _seen(tensor, tensor.dtype, torch.empty(tensor.shape, device="meta").stride())


def read_as(tensor: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What lies at the tensor's address for who takes its elements for those of another dtype; None if its memory ends
    too early.
    """
    return _seen(tensor, dtype, tensor.stride())


def _seen(tensor: Tensor, dtype: torch.dtype, strides: Sequence[int]) -> Tensor | None:
    storage = tensor.untyped_storage()
    start_bytes = tensor.storage_offset() * tensor.element_size()
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, strides, strict=True))
    if tensor.numel() == 0 or start_bytes + (last + 1) * dtype.itemsize > storage.nbytes():
        return None
    whole = torch.empty(0, dtype=dtype).set_(storage)
    return whole.as_strided(tensor.shape, strides, start_bytes // dtype.itemsize)


def _one_or_all(read: dict[int, Tensor]) -> list[dict[int, Tensor]]:
    """Each of the tensors alone, then all of them."""
    return [{number: tensor} for number, tensor in read.items()] + ([read] if len(read) > 1 else [])


def _listed(names: Sequence[str], numbers: dict[int, Tensor]) -> str:
    return " and ".join(names[number] for number in numbers)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
