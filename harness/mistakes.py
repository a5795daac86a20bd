"""Mistakes of arithmetic: what is left out, ignored, exchanged, negated, or computed in fewer bits.

Each is tried by computing the definition's reference with it, in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from harness import sabotage
from harness.wrong_call import WrongCall
from kernels.definition import Role

VECTORS = (4, 8, 16, 32, 64)
"""Elements that a loop may take at once, dropping the rest."""
LANES = (1, 4, 8, 16, 32)
"""Partial sums that a loop may keep."""
ROUGH_MANTISSAS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_TERMS = 1 << 20
"""Where sums are done over again with all their terms in memory."""
LONGEST_SUM = 8192
"""That is done over again term by term."""


def mistakes(call: WrongCall) -> Iterator[str]:
    """Names of the mistakes that explain the wrong elements, likeliest first."""
    yield from _short_sums(call)
    yield from _left_out(call)
    yield from _ignored(call)
    yield from _exchanged(call)
    yield from _copied(call)
    yield from _rough_sums(call)
    yield from _precision(call)
    yield from _proportions(call)
    yield from _negated(call)


def _short_sums(call: WrongCall) -> Iterator[str]:
    """Sums that leave out what does not fill a vector, or their last term, while all else is right."""
    if _terms(call) > MAX_TERMS:
        return
    for width in (1, *VECTORS):
        mode = sabotage.FaultySums(functools.partial(_whole_vectors, width=width))
        with mode:
            answer = call.answer(call.inputs)
        if mode.used and call.explained(answer):
            what = "the last term" if width == 1 else f"what is left over of whole vectors of {width}"
            yield f"matches the answer with sums that leave out {what}: the tail of the loop is missing"


def _whole_vectors(x: Tensor, dim: int, total: Callable[[Tensor], Tensor], width: int) -> Tensor:
    extent = x.shape[dim]
    return total(x.narrow(dim, 0, extent - 1 if width == 1 else extent // width * width))


def _left_out(call: WrongCall) -> Iterator[str]:
    """The end of each input's rows is not read: the last element, or what does not fill a vector."""
    for axis in dict.fromkeys(spec.dims[-1] for spec in call.definition.inputs if spec.dims):
        readers = [n for n, spec in enumerate(call.definition.inputs) if spec.dims and spec.dims[-1] == axis]
        extent = call.inputs[readers[0]].shape[-1]
        for kept in dict.fromkeys([extent - 1, *(extent // width * width for width in VECTORS)]):
            if not 0 < kept < extent:
                continue
            what = f"the last {extent - kept} of {extent} {axis} left out"
            for nothing in (0.0, -math.inf):
                shortened = [_cut(t, kept, nothing) if n in readers else t for n, t in enumerate(call.inputs)]
                if call.explained(call.answer(shortened), _before(call, axis, kept)):
                    yield f"matches the answer with {what}: the tail of the loop is missing"
                    break


def _cut(tensor: Tensor, kept: int, nothing: float) -> Tensor:
    short = tensor.to(torch.float64)
    short[..., kept:] = nothing
    return short


def _before(call: WrongCall, axis: str, kept: int) -> Tensor:
    """Output elements that lie before the tail themselves."""
    where = torch.ones(call.found.shape, dtype=torch.bool)
    dims = call.definition.outputs[call.output].dims
    if axis in dims:
        where.narrow(dims.index(axis), kept, where.shape[dims.index(axis)] - kept).zero_()
    return where


def _ignored(call: WrongCall) -> Iterator[str]:
    """An input or a scalar that plays no part."""
    for number, spec in enumerate(call.definition.inputs):
        for value in (1.0, 0.0):
            inputs = [torch.full_like(t, value) if n == number else t for n, t in enumerate(call.inputs)]
            if call.explained(call.answer(inputs)):
                yield f"matches the answer with {spec.name} = {value:g}: {spec.name} is ignored"
        if spec.role is Role.WEIGHT or call.inputs[number].dim() == 1:
            for change, what in ((1.0, "1 + "), (-1.0, "-1 + ")):
                inputs = [t.to(torch.float64) + change if n == number else t for n, t in enumerate(call.inputs)]
                if call.explained(call.answer(inputs)):
                    yield f"matches the answer with {what}{spec.name} in place of {spec.name}"
    for number, scalar in enumerate(call.definition.scalars):
        for value in (0.0, 1e-5, 1e-6, 1e-8, 1e-12):
            scalars = [value if n == number else given for n, given in enumerate(call.scalars)]
            if value != call.scalars[number] and call.explained(call.answer(call.inputs, scalars)):
                what = "is ignored" if value == 0 else f"is taken for {value:g}; read it from call->scalars"
                yield f"matches the answer with {scalar.name} = {value:g}: {scalar.name} {what}"


def _exchanged(call: WrongCall) -> Iterator[str]:
    specs = call.definition.inputs
    for first in range(len(specs)):
        for second in range(first + 1, len(specs)):
            if specs[first].dims == specs[second].dims:
                inputs = list(call.inputs)
                inputs[first], inputs[second] = inputs[second], inputs[first]
                if call.explained(call.answer(inputs)):
                    yield f"matches the answer with {specs[first].name} and {specs[second].name} exchanged"
    outputs = call.definition.outputs
    exact = [tensor.to(torch.float64) for tensor in call.inputs]
    for other, answer in enumerate(call.definition.reference(*exact, *call.scalars)):
        if other != call.output and call.explained(answer):
            yield f"holds the answer of {outputs[other].name}: the outputs are exchanged"


def _precision(call: WrongCall) -> Iterator[str]:
    """Fewer bits than the dtype has, in the results or in the inputs."""
    for name, kind in ROUGH_MANTISSAS.items():
        if kind is call.found.dtype or call.found.dtype is not torch.float32:
            continue
        wrong = call.found[call.wrong]
        if wrong.numel() > 2 and bool((wrong.to(kind).to(wrong.dtype) == wrong).all()):
            yield f"every wrong value is a {name} number: results are rounded to {name}"
        if call.explained(call.answer([tensor.to(kind) for tensor in call.inputs])):
            yield f"matches the answer for inputs rounded to {name}: the arithmetic is of lower precision"


def _copied(call: WrongCall) -> Iterator[str]:
    for spec, tensor in zip(call.definition.inputs, call.inputs, strict=True):
        if tensor.shape == call.found.shape and bool((tensor == call.found)[call.wrong].all()):
            yield f"the wrong values are a copy of {spec.name}"


def _rough_sums(call: WrongCall) -> Iterator[str]:
    """Sums that are kept in few bits, one term after another or in several lanes."""
    for name, lanes, answer in rough_sums(call):
        if call.explained(answer):
            how = "one term after another" if lanes == 1 else f"in {lanes} lanes"
            yield f"matches the answer with sums accumulated in {name}, {how}: accumulate in float32"


def rough_sums(call: WrongCall) -> Iterator[tuple[str, int, Tensor]]:
    """Per dtype of few bits and number of lanes, the answer with such sums; nothing where they are too long to redo."""
    if _terms(call) > MAX_TERMS or max(tensor.shape[-1] for tensor in call.inputs) > LONGEST_SUM:
        return
    for name, dtype in ROUGH_MANTISSAS.items():
        for lanes in LANES:
            mode = sabotage.FaultySums(sabotage.accumulate_in(dtype, lanes))
            with mode:
                answer = call.answer(call.inputs)
            if mode.used:
                yield name, lanes, answer


def _negated(call: WrongCall) -> Iterator[str]:
    for number, spec in enumerate(call.definition.inputs):
        inputs = [-tensor if n == number else tensor for n, tensor in enumerate(call.inputs)]
        if call.explained(call.answer(inputs)):
            yield f"matches the answer with -{spec.name} in place of {spec.name}: a sign is flipped"


def _terms(call: WrongCall) -> int:
    """Of all sums together, at most: one for each place along every axis."""
    extents = {
        axis: extent
        for spec, tensor in zip(call.definition.inputs, call.inputs, strict=True)
        for axis, extent in zip(spec.dims, tensor.shape, strict=True)
    }
    return math.prod(extents.values())


def _proportions(call: WrongCall) -> Iterator[str]:
    """The right answer times a constant, or off by one."""
    values, found = call.wanted.values[0][call.wrong], call.found[call.wrong].to(torch.float64)
    telling = torch.isfinite(values) & torch.isfinite(found) & (values != 0)
    if int(telling.sum()) < 3:
        return
    quotients = found[telling] / values[telling]
    typical = float(quotients.median())
    if typical not in (0.0, 1.0) and call.explained(call.wanted.values[0] * typical):
        yield f"the wrong values are {typical:.6g} times what they should be: a factor is missing or applied twice"
    offset = float((found - values)[telling].median())
    if offset and call.explained(call.wanted.values[0] + offset):
        yield f"the wrong values are off by {offset:.6g}"
    yield from _factor_per_row(call)


def _factor_per_row(call: WrongCall) -> Iterator[str]:
    values, found = call.wanted.values[0], call.found.to(torch.float64)
    if values.dim() < 2 or values.shape[-1] < 3:
        return
    factors = (found / values).nanmedian(-1, keepdim=True).values
    if call.explained(values * factors):
        wrong = factors[call.wrong.any(-1)].flatten()
        yield (
            f"each wrong row is its right answer times a factor of its own ({float(wrong[0]):.6g} in the first): "
            "what is shared by a row, its sum, mean or maximum, is wrong"
        )
