"""Wrong answers of kinds that happen: each is what some faulty or dishonest kernel would give.

They are made from the definition's own reference, so that they exist for every operator: with rounded inputs, with sums
that stop early, round to fewer bits or belong to another row, and from the right answer by damaging it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.definition import Definition

Answers = Sequence[Tensor | None]
LOST_BITS = {torch.float32: {"TF32": 13, "bfloat16": 16}, torch.bfloat16: {"three bits of mantissa": 4}}
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
OPS = torch.ops.aten
BENEATH_BFLOAT16 = frozenset(
    (
        "one row times 1.001",
        "one element off by 2^-10",
        "one element off by 2^-10 in a million",
    )
)
"""Smaller than half a unit in bfloat16's last place."""
EIGHT_BITS = "in eight-bit integers"
"""About as exact as bfloat16 for values of one magnitude."""


def answers(
    inputs: Sequence[Tensor],
    scalars: Sequence[float],
    definition: Definition,
    right: Sequence[Tensor],
    other: Sequence[Tensor],
) -> Iterator[tuple[str, Answers]]:
    """All kinds by name. `right` is the answer, `other` that of another call; unaffected outputs are None."""
    yield from constants(right)
    yield from copies(inputs, right)
    yield "the last call's answer", list(other)
    yield from dropped_outputs(right)
    yield from wrong_rows(right)
    yield from single_elements(right)
    yield from misplaced(right)
    yield from rounded_outputs(right)

    def reference(*tensors: Tensor) -> Answers:
        exact = [tensor.to(torch.float64) for tensor in tensors]
        results = definition.reference(*exact, *scalars)
        return [changed(one.to(was.dtype), was) for one, was in zip(results, right, strict=True)]

    names = [spec.name for spec in definition.inputs]
    yield from rounded_inputs(names, inputs, reference)
    yield from dropped_inputs(names, inputs, reference)
    yield from ignored_inputs(names, inputs, reference)
    for what, mode in faulty_sums(right[0].dtype):
        with mode:
            found = reference(*inputs)
        if mode.used:
            yield what, found


def changed(answer: Tensor, right: Tensor) -> Tensor | None:
    """The answer, or None if it is right to the bit."""
    same = (answer == right) | (torch.isnan(answer) & torch.isnan(right))
    return None if bool(same.all()) else answer


def constants(right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    for name, value in (("zeros", 0.0), ("ones", 1.0), ("NaN", torch.nan), ("infinity", torch.inf)):
        yield name, [torch.full_like(tensor, value) for tensor in right]
    yield "the mean", [torch.full_like(t, float(t.to(torch.float64).mean())) for t in right]


def copies(inputs: Sequence[Tensor], right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    """Each input, repeated or cut to the size of the output."""
    for number, tensor in enumerate(inputs):
        flat = tensor.flatten()
        tiled = [flat.repeat(-(-out.numel() // flat.numel()))[: out.numel()].reshape(out.shape) for out in right]
        yield f"a copy of input {number}", tiled


def dropped_outputs(right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    def flat(count: int) -> Callable[[Tensor], Any]:
        return lambda t: t.view(-1)[-count:].zero_()

    yield "the last element dropped", [_damaged(t, flat(1)) for t in right]
    yield "the last seven elements dropped", [_damaged(t, flat(7)) for t in right]
    yield "the last column dropped", [_damaged(t, lambda t: t[..., -1].zero_()) for t in right]
    yield "the last row dropped", [_damaged(t, lambda t: t[-1].zero_()) for t in right]


def wrong_rows(right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    yield "one row its neighbour's", [_damaged(t, lambda t: t[1].copy_(t[2].clone())) for t in right]
    for factor in (1.001, 1.05):
        yield f"one row times {factor:g}", [_damaged(t, functools.partial(_scale_row, factor=factor)) for t in right]
    yield "rows in reverse", [t.flip(0) for t in right]
    yield "columns moved by one", [t.roll(1, -1) for t in right]


def single_elements(right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    """One wrong element, of a middling size."""
    yield "one element's sign", [_damaged(t, lambda t: _one(t).neg_()) for t in right]
    yield "one element its neighbour's", [_damaged(t, _take_neighbour) for t in right]
    yield "one element off by 2^-10", [_damaged(t, lambda t: _scale(_one(t), 1 + 2**-10)) for t in right]
    yield "one element doubled", [_damaged(t, lambda t: _scale(_one(t), 2.0)) for t in right]


def misplaced(right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    """NaN or an infinity where there is none, and none where there is."""
    for name, value in (("NaN", torch.nan), ("infinity", torch.inf), ("minus infinity", -torch.inf)):
        yield f"one {name}", [_damaged(t, functools.partial(_put_one, value=value)) for t in right]
        yield f"a row of {name}", [_damaged(t, functools.partial(_put_row, value=value)) for t in right]


def rounded_outputs(right: Sequence[Tensor]) -> Iterator[tuple[str, Answers]]:
    for name, lost in LOST_BITS[right[0].dtype].items():
        yield f"outputs in {name}", [changed(fewer_bits(t, lost), t) for t in right]
    if right[0].dtype is torch.float32:
        yield "outputs in float16", [changed(t.half().float(), t) for t in right]


def rounded_inputs(
    names: Sequence[str], inputs: Sequence[Tensor], reference: Callable[..., Answers]
) -> Iterator[tuple[str, Answers]]:
    for name, lost in LOST_BITS[inputs[0].dtype].items():
        yield f"all inputs in {name}", reference(*(fewer_bits(tensor, lost) for tensor in inputs))
        for number, tensor in enumerate(inputs):
            yield f"{names[number]} in {name}", reference(*_with(inputs, number, fewer_bits(tensor, lost)))
    if inputs[0].dtype is torch.float32:
        yield "all inputs in float16", reference(*(tensor.half().float() for tensor in inputs))
    yield f"all inputs {EIGHT_BITS}", reference(*(_eight_bits(tensor) for tensor in inputs))
    for number, tensor in enumerate(inputs):
        yield f"{names[number]} {EIGHT_BITS}", reference(*_with(inputs, number, _eight_bits(tensor)))


def dropped_inputs(
    names: Sequence[str], inputs: Sequence[Tensor], reference: Callable[..., Answers]
) -> Iterator[tuple[str, Answers]]:
    """The last value of each row is not read: as a loop over whole vectors would have it."""
    for number, tensor in enumerate(inputs):
        short = tensor.clone(memory_format=torch.contiguous_format)
        short[..., -1] = 0
        yield f"the last column of {names[number]} not read", reference(*_with(inputs, number, short))


def ignored_inputs(
    names: Sequence[str], inputs: Sequence[Tensor], reference: Callable[..., Answers]
) -> Iterator[tuple[str, Answers]]:
    for number, tensor in enumerate(inputs):
        for value in (0.0, 1.0):
            plain = torch.full_like(tensor.contiguous(), value)
            yield f"{names[number]} taken for {value:g}", reference(*_with(inputs, number, plain))


class FaultySums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every sum, mean and matrix product is done by a faulty one; `used` says whether there was any."""

    def __init__(self, fault: Callable[[Tensor, int, Callable[[Tensor], Tensor]], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fault = fault
        self.used = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        packet = func.overloadpacket
        if packet in (OPS.sum, OPS.mean) and len(args) > 1 and len(args[1]) == 1:
            self.used = True
            x, (dim,), *keep = args
            keepdim = bool(keep and keep[0])
            total = self._fault(x, dim % x.dim(), lambda terms: terms.sum(dim, keepdim=keepdim))
            return total / x.shape[dim] if packet is OPS.mean else total
        if packet in (OPS.mm, OPS.bmm):
            self.used = True
            x, weight = args
            products = x[..., :, :, None] * weight[..., None, :, :]
            return self._fault(products, products.dim() - 2, lambda terms: terms.sum(products.dim() - 2))
        return func(*args, **(kwargs or {}))


def faulty_sums(dtype: torch.dtype) -> Iterator[tuple[str, FaultySums]]:
    """Kinds of faulty sums by name."""
    for count in (1, 7):
        yield f"sums without their last {count}", FaultySums(_stop_early(count))
    yield "sums of the neighbouring row", FaultySums(lambda x, _dim, total: total(x).roll(1, 0))
    yield "sums in bfloat16", FaultySums(accumulate_in(torch.bfloat16))
    if dtype is torch.float32:
        yield "sums in float16", FaultySums(accumulate_in(torch.float16))


def _stop_early(count: int) -> Callable[[Tensor, int, Callable[[Tensor], Tensor]], Tensor]:
    return lambda x, dim, total: total(x.narrow(dim, 0, x.shape[dim] - count))


def accumulate_in(dtype: torch.dtype, lanes: int = 1) -> Callable[[Tensor, int, Callable[[Tensor], Tensor]], Tensor]:
    """So many running sums, each rounded after each term, and then added up likewise."""

    def fault(x: Tensor, dim: int, total: Callable[[Tensor], Tensor]) -> Tensor:
        terms = x.movedim(dim, 0)
        missing = -len(terms) % lanes
        padded = torch.cat((terms, terms.new_zeros((missing, *terms.shape[1:])))) if missing else terms
        by_lane = running(padded.reshape(-1, lanes, *terms.shape[1:]))
        return running(by_lane).reshape(total(x).shape)

    def running(terms: Tensor) -> Tensor:
        sum_so_far = torch.zeros_like(terms[0])
        for term in terms:
            sum_so_far = (sum_so_far + term).to(dtype).to(terms.dtype)
        return sum_so_far

    return fault


def fewer_bits(tensor: Tensor, lost: int) -> Tensor:
    """Rounded to nearest, with so many bits of the mantissa gone; NaN and infinities stay."""
    kind = BITS[tensor.dtype]
    rough = ((tensor.contiguous().view(kind) + (1 << (lost - 1))) & -(1 << lost)).view(tensor.dtype)
    return torch.where(torch.isfinite(tensor), rough, tensor)


def _eight_bits(tensor: Tensor) -> Tensor:
    """Quantised to 255 steps with one scale per row."""
    finite = tensor.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
    step = finite.abs().amax(-1, keepdim=True).clamp(min=1e-300) / 127
    return torch.where(torch.isfinite(tensor), (finite / step).round() * step, tensor.to(torch.float64))


def _with(inputs: Sequence[Tensor], number: int, changed: Tensor) -> list[Tensor]:
    return [changed if place == number else tensor for place, tensor in enumerate(inputs)]


def _damaged(right: Tensor, damage: Callable[[Tensor], Any]) -> Tensor | None:
    output = right.contiguous().clone()
    damage(output)
    return changed(output, right)


def _scale(part: Tensor, factor: float) -> Tensor:
    return part.copy_((part.to(torch.float64) * factor).to(part.dtype))


def _scale_row(output: Tensor, factor: float) -> None:
    _scale(output[1], factor)


def _put_one(output: Tensor, value: float) -> None:
    _one(output).fill_(value)


def _put_row(output: Tensor, value: float) -> None:
    output[1].fill_(value)


def _one(output: Tensor) -> Tensor:
    flat = output.view(-1)
    place = _middling(flat)
    return flat[place : place + 1]


def _middling(flat: Tensor) -> int:
    """Where an element of median magnitude lies, among those that are neither zero nor infinite."""
    sizes = flat.to(torch.float32).abs()
    telling = sizes[(sizes > 0) & torch.isfinite(sizes)]
    return int((sizes == telling.median()).to(torch.uint8).argmax()) if telling.numel() else 0


def _take_neighbour(output: Tensor) -> None:
    flat = output.view(-1)
    place = _middling(flat)
    flat[place] = flat[place - 1].clone()
