"""Which mistake gives just these wrong answers.

The wrong elements of one call are held against what a series of mistakes would have given, each recomputed in float64
from that call's own memory. A mistake is named only if nearly all wrong elements match it as closely as the correctness
rule asks. Tensors here are those of one call, without an axis of sets, laid out as the kernel saw them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gristmill.workload import Workload
from harness import comparer, sabotage
from harness.comparer import FACTOR, ErrorFacts, Expected
from kernels.definition import Definition, Role

MATCHED = 0.9
"""Share of the wrong elements that a mistake must explain."""
DIAGNOSED_ELEMENTS = 1 << 21
"""Input elements of a call that is diagnosed at most; of larger weights a part is used."""
PART = 64
"""Places along the independent axis, where weights are large."""
VECTORS = (4, 8, 16, 32, 64)
"""Elements that a loop may take at once, dropping the rest."""
ROUGH_MANTISSAS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_PRODUCTS = 1 << 20
"""Of two inputs' elements, where sums are done over again with all their terms in memory."""
LOW_PRECISION = 2.0**-13
"""Typical error over error scale from which on arithmetic of fewer bits than float32's is likely."""


@dataclass(frozen=True)
class Call:
    """One call with its wrong elements, in float64."""

    definition: Definition
    inputs: tuple[Tensor, ...]
    scalars: tuple[float, ...]
    output: int
    found: Tensor
    """The one output that is looked at."""
    wanted: Expected
    facts: ErrorFacts
    factor: float
    wrong: Tensor
    """Which elements differ."""

    def answer(self, inputs: Sequence[Tensor], scalars: Sequence[float] | None = None) -> Tensor:
        """What the definition gives for other inputs."""
        exact = [tensor.to(torch.float64) for tensor in inputs]
        results = self.definition.reference(*exact, *(self.scalars if scalars is None else scalars))
        return results[self.output]

    @property
    def right(self) -> bool:
        """Whether the rule finds nothing, not even in the means."""
        found = self.found[None]
        return comparer.compare(found, self.wanted, self.facts, workload="", output="", factor=self.factor) is None

    def explained(self, answer: Tensor, where: Tensor | None = None) -> bool:
        """Whether the wrong elements, or those of them that lie in `where`, are this answer's."""
        wrong = self.wrong if where is None else self.wrong & where
        if answer.shape != self.found.shape or not bool(wrong.any()):
            return False
        as_if = Expected(answer[None], self.wanted.scale, self.wanted.dtype)
        ratios = comparer.element_ratios(comparer.deviate(self.found[None], as_if), self.facts, self.factor)[0]
        return float((ratios <= 1)[wrong].to(torch.float32).mean()) >= MATCHED


def diagnose(
    definition: Definition,
    workload: Workload,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    facts: Sequence[ErrorFacts],
    *,
    output: int = 0,
    previous: Sequence[Tensor] | None = None,
    factor: float = FACTOR,
) -> str:
    """One line that names the mistake, or nothing.

    Args:
        inputs, outputs: whole tensors of the call, as views of the memory that the kernel saw.
        output: which of the outputs is wrong.
        previous: what the same buffers held after the call before.
    """
    elements = sum(tensor.numel() for tensor in (*inputs, *outputs))
    if elements > 8 * DIAGNOSED_ELEMENTS and not definition.independent_axis:
        return ""
    with torch.inference_mode():
        call, narrow = _call(definition, inputs, outputs[output], facts[output], output, factor)
        if not bool(call.wrong.any()):
            return "" if call.right else _precise_to(call)
        before = None if previous is None else narrow(previous[output], definition.outputs[output].dims)
        misread = next(_strides(call, workload, inputs, narrow), "")
        return misread or _plain(call, before) or next(_mistakes(call), "") or _input_range(call) or _precise_to(call)


def _call(
    definition: Definition,
    inputs: Sequence[Tensor],
    found: Tensor,
    facts: ErrorFacts,
    output: int,
    factor: float,
) -> tuple[Call, Callable[[Tensor, Sequence[str]], Tensor]]:
    """The call, on a part of the independent axis where its weights are large, and what takes that part of a tensor."""
    axis = definition.independent_axis
    places: Tensor | None = None
    if axis and sum(tensor.numel() for tensor in inputs) > DIAGNOSED_ELEMENTS:
        dims = definition.outputs[output].dims
        extent = found.shape[dims.index(axis)]
        places = torch.linspace(0, extent - 1, min(PART, extent)).to(torch.int64)

    def narrow(tensor: Tensor, dims: Sequence[str]) -> Tensor:
        return tensor if places is None or axis not in dims else tensor.index_select(list(dims).index(axis), places)

    scalars = tuple(scalar.default for scalar in definition.scalars)
    parts = tuple(narrow(t, spec.dims) for t, spec in zip(inputs, definition.inputs, strict=True))
    exact = [tensor.to(torch.float64) for tensor in parts]
    values = definition.reference(*exact, *scalars)[output]
    scale = definition.error_scale(*exact, *scalars)[output]
    part = narrow(found, definition.outputs[output].dims)
    wanted = Expected(values[None], scale[None], found.dtype)
    ratios = comparer.element_ratios(comparer.deviate(part[None], wanted), facts, factor)[0]
    return Call(definition, parts, scalars, output, part, wanted, facts, factor, ratios > 1), narrow


def _plain(call: Call, previous: Tensor | None) -> str:
    """What can be seen without computing anything."""
    found, wrong = call.found, call.wrong
    values = found[wrong]
    if previous is not None and bool((previous[wrong] == values).all()) and not bool((values == 0).all()):
        return "these are the values that were there before: nothing was written, or an earlier answer was kept"
    if bool(torch.isnan(values).all()):
        return (
            _overflow(call)
            or "NaN: an invalid operation (0/0, inf - inf, root of a negative number), or nothing written"
        )
    if bool((values == 0).all()):
        return "zeros where there should be values: that part is not computed, or rounds to nothing"
    if values.numel() > 1 and bool((values == values[0]).all()):
        return f"the constant {float(values[0]):.6g} wherever it is wrong"
    return ""


def _copied(call: Call) -> Iterator[str]:
    for spec, tensor in zip(call.definition.inputs, call.inputs, strict=True):
        if tensor.shape == call.found.shape and bool((tensor == call.found)[call.wrong].all()):
            yield f"the wrong values are a copy of {spec.name}"


def _overflow(call: Call) -> str:
    """NaN in rows that hold the largest inputs only."""
    if not math.isfinite(float(call.wanted.values.abs().nan_to_num(0.0).max())):
        return ""
    return (
        _input_range(call)
        and f"NaN {_input_range(call)}: an intermediate overflows; scale or subtract the maximum first"
    )


def _mistakes(call: Call) -> Iterator[str]:
    """Names of the mistakes that explain the wrong elements, likeliest first."""
    yield from _rows(call)
    yield from _short_sums(call)
    yield from _left_out(call)
    yield from _ignored(call)
    yield from _exchanged(call)
    yield from _copied(call)
    yield from _precision(call)
    yield from _proportions(call)


def _strides(
    call: Call,
    workload: Workload,
    whole: Sequence[Tensor],
    narrow: Callable[[Tensor, Sequence[str]], Tensor],
) -> Iterator[str]:
    """Inputs read in memory order, whatever their strides say: one of them, then all."""
    specs = call.definition.inputs
    misread = {
        number: narrow(dense, specs[number].dims)
        for number, layout in enumerate(workload.inputs)
        if not layout.contiguous and (dense := read_as_dense(whole[number])) is not None
    }
    choices = [(number,) for number in misread] + ([tuple(misread)] if len(misread) > 1 else [])
    for chosen in choices:
        inputs = [misread[n] if n in chosen else tensor for n, tensor in enumerate(call.inputs)]
        if call.explained(call.answer(inputs)):
            names = " and ".join(specs[n].name for n in chosen)
            strides = ", ".join("x".join(map(str, workload.inputs[n].strides)) for n in chosen)
            yield f"matches the answer for {names} read as dense: strides ({strides}) are ignored"


def read_as_dense(tensor: Tensor) -> Tensor | None:
    """The tensor's memory in order, in its shape; None if its memory ends too early."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if tensor.numel() > elements:
        return None
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def _rows(call: Call) -> Iterator[str]:
    """Rows or columns that hold another's answer, or the answer turned over."""
    values, found = call.wanted.values[0], call.found
    if found.dim() < 2:
        return
    for dim, name in ((0, "row"), (found.dim() - 1, "column")):
        for step in (1, -1):
            if found.shape[dim] > 1 and call.explained(values.roll(step, dim)):
                yield f"each wrong {name} holds the answer of the {'one before' if step > 0 else 'next'}: off by one"
        if found.shape[dim] > 2 and call.explained(values.flip(dim)):
            yield f"{name}s are in reverse order"
    if found.dim() == 2 and call.explained(values.T.contiguous().reshape(values.shape)):
        yield "the output is written transposed"


def _short_sums(call: Call) -> Iterator[str]:
    """Sums that leave out what does not fill a vector, or their last term, while all else is right."""
    if math.prod(call.inputs[0].shape) * math.prod(call.inputs[-1].shape) > MAX_PRODUCTS:
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


def _left_out(call: Call) -> Iterator[str]:
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


def _before(call: Call, axis: str, kept: int) -> Tensor:
    """Output elements that lie before the tail themselves."""
    where = torch.ones(call.found.shape, dtype=torch.bool)
    dims = call.definition.outputs[call.output].dims
    if axis in dims:
        where.narrow(dims.index(axis), kept, where.shape[dims.index(axis)] - kept).zero_()
    return where


def _ignored(call: Call) -> Iterator[str]:
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


def _exchanged(call: Call) -> Iterator[str]:
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


def _precision(call: Call) -> Iterator[str]:
    """Fewer bits than the dtype has, in the results or in the inputs."""
    for name, kind in ROUGH_MANTISSAS.items():
        if kind is call.found.dtype or call.found.dtype is not torch.float32:
            continue
        wrong = call.found[call.wrong]
        if wrong.numel() > 2 and bool((wrong.to(kind).to(wrong.dtype) == wrong).all()):
            yield f"every wrong value is a {name} number: results are rounded to {name}"
        if call.explained(call.answer([tensor.to(kind) for tensor in call.inputs])):
            yield f"matches the answer for inputs rounded to {name}: the arithmetic is of lower precision"


def _proportions(call: Call) -> Iterator[str]:
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


def _factor_per_row(call: Call) -> Iterator[str]:
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


def _precise_to(call: Call) -> str:
    """Errors of about the same size everywhere: how many bits are right."""
    scale, values = call.wanted.scale[0], call.wanted.values[0]
    off = ((call.found.to(torch.float64) - values).abs() / scale).flatten()
    typical = float(off[torch.isfinite(off)].median()) if bool(torch.isfinite(off).any()) else 0.0
    share = float(call.wrong.to(torch.float32).mean())
    if call.found.dtype is torch.float32 and LOW_PRECISION < typical < 2.0**-4 and (share > 0.5 or share == 0):
        return f"about {-math.log2(typical):.0f} bits are right: an intermediate or a sum is of lower precision"
    if 0 < typical < 2.0**-4 and share == 0:
        return "every element is a little less exact than the engine's: a rounding more, or fewer bits, somewhere"
    return ""


def _input_range(call: Call) -> str:
    """Whether the rows with wrong elements have larger, or smaller, inputs than all others: a clause."""
    dims = call.definition.outputs[call.output].dims
    wrong_R = call.wrong.flatten(1).any(1) if call.wrong.dim() > 1 else call.wrong
    if bool(wrong_R.all()):
        return ""
    for spec, tensor in zip(call.definition.inputs, call.inputs, strict=True):
        if spec.dims[0] != dims[0] or tensor.shape[0] != wrong_R.shape[0]:
            continue
        sizes_R = tensor.to(torch.float64).abs().nan_to_num(0.0, 0.0).flatten(1).amax(1) if tensor.dim() > 1 else None
        if sizes_R is None:
            continue
        bad, good = sizes_R[wrong_R], sizes_R[~wrong_R]
        if bool(bad.min() > good.max()):
            return f"only in rows whose largest |{spec.name}| is above {float(good.max()):.3g}"
        if bool(bad.max() < good.min()):
            return f"only in rows whose largest |{spec.name}| is below {float(good.min()):.3g}"
    return ""
