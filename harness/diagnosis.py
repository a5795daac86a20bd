"""Which mistake gives just these wrong answers.

The wrong elements of one call are held against what a series of mistakes would have given, each recomputed in float64
from that call's own memory. A mistake is named only if nearly all wrong elements match it as closely as the correctness
rule asks. Tensors here are those of one call, without an axis of sets, laid out as the kernel saw them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gristmill.workload import Workload
from harness import comparer
from harness.arena import BITS, POISON
from harness.comparer import FACTOR, ErrorFacts, Expected
from harness.misplacement import misplacements
from harness.misreading import Memory, misreadings
from harness.mistakes import mistakes, rough_sums
from harness.wrong_call import WrongCall
from kernels.definition import Definition

DIAGNOSED_ELEMENTS = 1 << 21
"""Input elements of a call that is diagnosed at most; of larger weights a part is used."""
PART = 64
"""Places along the independent axis, where weights are large."""
LOW_PRECISION = 2.0**-13
"""Typical error over error scale from which on arithmetic of fewer bits than float32's is likely."""

ALIKE = 2.5
"""Between typical errors that may have the same cause: bfloat16 has three bits less than float16."""

UNEXPLAINED = 0.4
"""Of the mean squared error, at most, where a mistake is named for the rest of it."""

NO_NUMBER = (
    "NaN: an invalid operation (0/0, inf - inf, root of a negative number), or memory was read that holds no element: "
    "what lies between and behind them is NaN"
)


def diagnose(
    definition: Definition,
    workload: Workload,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    facts: Sequence[ErrorFacts],
    *,
    output: int = 0,
    previous: Sequence[Tensor] | None = None,
    unwritten: Tensor | None = None,
    factor: float = FACTOR,
) -> str:
    """One line that names the mistake, or nothing.

    Args:
        inputs, outputs: whole tensors of the call, as views of the memory that the kernel saw.
        output: which of the outputs is wrong.
        previous: what the same buffers held after the call before.
        unwritten: which elements of that output were not written at all: what is wrong with the others is said.
    """
    elements = sum(tensor.numel() for tensor in (*inputs, *outputs))
    if elements > 8 * DIAGNOSED_ELEMENTS and not definition.independent_axis:
        return ""
    with torch.no_grad():  # in inference mode sums within a product would not be seen one by one
        memory = Memory(inputs, outputs[output], _part(definition, inputs))
        dims = definition.outputs[output].dims
        call = _call(definition, memory, output, facts[output], factor)
        if unwritten is not None:
            call = replace(call, wrong=call.wrong & ~memory.narrow(unwritten, dims))
        elif not bool(call.wrong.any()):
            return "" if call.right else _precise_to(call)
        misread = next(misreadings(call, workload, memory), "")
        if misread or not bool(call.wrong.any()):
            return misread
        before = None if previous is None else memory.narrow(previous[output], dims)
        named = _plain(call, before) or next(misplacements(call), "") or next(mistakes(call), "")
        return named or _input_range(call) or _precise_to(call)


def _part(definition: Definition, inputs: Sequence[Tensor]) -> Callable[[Tensor, Sequence[str]], Tensor]:
    """What takes a part of a tensor along the independent axis, where weights are large."""
    axis = definition.independent_axis
    if not axis or sum(tensor.numel() for tensor in inputs) <= DIAGNOSED_ELEMENTS:
        return lambda tensor, _dims: tensor
    having = next(n for n, spec in enumerate(definition.inputs) if axis in spec.dims)
    extent = inputs[having].shape[definition.inputs[having].dims.index(axis)]
    places = torch.linspace(0, extent - 1, min(PART, extent)).to(torch.int64)

    def narrow(tensor: Tensor, dims: Sequence[str]) -> Tensor:
        return tensor if axis not in dims else tensor.index_select(list(dims).index(axis), places)

    return narrow


def _call(definition: Definition, memory: Memory, output: int, facts: ErrorFacts, factor: float) -> WrongCall:
    scalars = tuple(scalar.default for scalar in definition.scalars)
    parts = tuple(memory.narrow(t, spec.dims) for t, spec in zip(memory.inputs, definition.inputs, strict=True))
    exact = [tensor.to(torch.float64) for tensor in parts]
    values = definition.reference(*exact, *scalars)[output]
    scale = definition.error_scale(*exact, *scalars)[output]
    part = memory.narrow(memory.output, definition.outputs[output].dims)
    wanted = Expected(values[None], scale[None], part.dtype)
    ratios = comparer.element_ratios(comparer.deviate(part[None], wanted), facts, factor)[0]
    return WrongCall(definition, parts, scalars, output, part, wanted, facts, factor, ratios > 1)


def _plain(call: WrongCall, previous: Tensor | None) -> str:
    """What can be seen without computing anything."""
    found, wrong = call.found, call.wrong
    values = found[wrong]
    if previous is not None and bool((previous[wrong] == values).all()) and not bool((values == 0).all()):
        return "these are the values that were there before: nothing was written, or an earlier answer was kept"
    if bool(torch.isnan(values).all()):
        return _half_written(call) or _overflow(call) or NO_NUMBER
    if bool((values == 0).all()):
        return "zeros where there should be values: that part is not computed, or rounds to nothing"
    if values.numel() > 1 and bool((values == values[0]).all()):
        return f"the constant {float(values[0]):.6g} wherever it is wrong"
    return ""


def _half_written(call: WrongCall) -> str:
    """Elements of which the upper half, which alone makes them NaN, is still what the output was filled with."""
    if call.found.dtype is not torch.float32:
        return ""
    untouched = (call.found.view(BITS[4]) >> 16) == (POISON[4] >> 16)
    if not bool(untouched[call.wrong].all()):
        return ""
    return "only 2 of the 4 bytes of each wrong element were written: tensors of this call are float32"


def _overflow(call: WrongCall) -> str:
    """NaN in rows that hold the largest inputs only."""
    if not math.isfinite(float(call.wanted.values.abs().nan_to_num(0.0).max())):
        return ""
    return (
        _input_range(call)
        and f"NaN {_input_range(call)}: an intermediate overflows; scale or subtract the maximum first"
    )


def _precise_to(call: WrongCall) -> str:
    """Errors of about the same size everywhere: how many bits are right."""
    typical = _typical_error(call, call.found)
    share = float(call.wrong.to(torch.float32).mean())
    if call.found.dtype is torch.float32 and LOW_PRECISION < typical < 2.0**-4 and (share > 0.5 or share == 0):
        likely = _likely_sum(call, typical) or "an intermediate or a sum is of lower precision"
        return f"about {-math.log2(typical):.0f} bits are right: {likely}"
    if 0 < typical < 2.0**-4 and share == 0:
        usual = "every element is a little less exact than the engine's: a rounding more, or fewer bits, somewhere"
        return _nearest_sum(call) or usual
    return ""


def _typical_error(call: WrongCall, found: Tensor) -> float:
    """The median, over error scale."""
    off = ((found.to(torch.float64) - call.wanted.values[0]).abs() / call.wanted.scale[0]).flatten()
    return float(off[torch.isfinite(off)].median()) if bool(torch.isfinite(off).any()) else 0.0


def _likely_sum(call: WrongCall, typical: float) -> str:
    """The dtype in which a sum would err about as much, if it is clear which."""
    errors = {f"{name} {lanes}": _typical_error(call, answer) for name, lanes, answer in rough_sums(call)}
    near = {name.split()[0] for name, error in errors.items() if 1 / ALIKE < error / typical < ALIKE}
    return f"as many as a sum in {near.pop()} gives; accumulate in float32" if len(near) == 1 else ""


def _nearest_sum(call: WrongCall) -> str:
    """Sums in few bits that leave little of the errors to explain."""
    scale = call.wanted.scale[0]

    def left_over(answer: Tensor) -> float:
        return float(((call.found.to(torch.float64) - answer) / scale).square().nanmean())

    whole = left_over(call.wanted.values[0])
    for name, _, answer in rough_sums(call):
        if left_over(answer) < UNEXPLAINED * whole:
            return f"most of the error is that of sums accumulated in {name}: accumulate in float32"
    return ""


def _input_range(call: WrongCall) -> str:
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
