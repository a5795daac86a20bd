"""Where a call wrote: which elements of its outputs it left, and what it wrote around them.

What it should have written is recomputed, so that an agent sees the place, the mistake where it is known, and a call
that shows it. All of it still lies in the buffers, poisoned before the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from harness import comparer, damage, diagnosis, feedback
from harness.arena import BITS, POISON, Numbers, OutputArena, indices
from harness.draws import Draws, Part, choose_part
from harness.layout import Place
from harness.mistakes import VECTORS
from harness.session import Finding
from harness.stock import Stock
from kernels.verdict import FailingCase, Mismatch

RECOMPUTED_ELEMENTS = 1 << 22
"""Of the inputs of a call; of larger ones only the place of the first unwritten element."""


@dataclass(frozen=True)
class Scene:
    """The sets of a run, and which base draws of which regimes they hold."""

    stock: Stock
    outputs: OutputArena
    regimes: Sequence[str]
    which: NDArray[np.int64]
    numbers: Numbers
    cases: NDArray[np.int64]
    factor: float

    def draws(self, at: int) -> Draws:
        """What the set `numbers[at]` was filled from."""
        return self.stock.draws(self.regimes[self.which[at]])


def located(finding: Finding, scene: Scene) -> Finding:
    """The finding that outputs were left unwritten or written around, with the place of it and a failing case."""
    for output in range(len(scene.outputs.tensors)):
        told = next(_spills(finding, scene, output), None) or next(_gaps(finding, scene, output), None)
        if told is not None:
            return told
    return finding


def _gaps(finding: Finding, scene: Scene, output: int) -> Iterator[Finding]:
    """Per set with unwritten elements of that output, the finding with their place."""
    for at, number in enumerate(scene.numbers):
        missing = unwritten(scene.outputs.tensors[output][int(number)])
        if not bool(missing.any()):
            continue
        mismatch = _mismatch(scene, output, at, missing)
        said, case = _explained(scene, output, at, missing, mismatch)
        if not said:
            said = _left_over(missing, scene.stock.definition.outputs[output].dims[-1])
            case = replace(case, diagnosis=said)
        place = f"({feedback.extent(mismatch)}), first at {list(mismatch.worst_index)}"
        wanted = f"{case.regime} values: expected {mismatch.expected}"
        reason = "; ".join([f"{finding.reason} {place}, {wanted}", *([said] if said else [])])
        yield Finding(finding.status, reason, (mismatch,), (case,))


def _mismatch(scene: Scene, output: int, at: int, missing: Tensor) -> Mismatch:
    """Where elements were left unwritten, and how the others compare with what they should be."""
    stock, draws = scene.stock, scene.draws(at)
    definition, spec = stock.definition, stock.definition.outputs[output]
    part = choose_part(definition, stock.workload, RECOMPUTED_ELEMENTS, Generator())
    first = dict(zip(spec.dims, missing.nonzero()[0].tolist(), strict=True))
    if part.places is not None:
        part = Part(definition, part.axis, torch.tensor([first[part.axis]]))
    inputs = part.of_inputs(draws.bases, torch.from_numpy(scene.cases[at : at + 1]))
    expected = draws.expected(inputs)[output]
    found = part.of_outputs(scene.outputs.tensors, indices(scene.numbers[at : at + 1]))[output]
    ratios = comparer.element_ratios(comparer.deviate(found, expected), draws.facts[output], scene.factor)[0]
    gaps = unwritten(found[0])
    mismatch = damage.describe(
        found[0],
        expected.values[0],
        torch.where(gaps, math.inf, ratios),
        gaps,
        workload=stock.workload.label,
        output=spec.name,
        call=at,
        error_ratio=math.inf,
    )
    return damage.locate(replace(mismatch, found="unwritten", worst_index=tuple(first.values())), missing)


def _left_over(missing: Tensor, axis: str) -> str:
    """Whether what is missing is what loops over whole vectors leave, of each row or of all elements."""
    for rows_RC, name in ((missing.reshape(-1, missing.shape[-1]), axis), (missing.reshape(1, -1), "elements")):
        extent, written = rows_RC.shape[1], int((~rows_RC[0]).sum())
        if not 0 < written < extent or bool((rows_RC != (torch.arange(extent) >= written)).any()):
            continue
        widths = [str(width) for width in VECTORS if extent // width * width == written]
        if widths:
            left = f"the last {extent - written} of {extent} {name}"
            return f"{left} are what whole vectors of {' or '.join(widths)} leave over: the tail of the loop is missing"
    return ""


def _spills(finding: Finding, scene: Scene, output: int) -> Iterator[Finding]:
    """Per set of that output around which something was written, the finding with how far it reaches."""
    tensor = scene.outputs.tensors[output]
    last = tuple(extent - 1 for extent in tensor.shape[1:])
    for at, number in enumerate(scene.numbers):
        before_bytes, behind_bytes = spill_bytes(scene.stock.layout.outputs[output], tensor, int(number))
        if not before_bytes and not behind_bytes:
            continue
        index = last if behind_bytes else (0,) * len(last)
        words = f"followed by {behind_bytes}" if behind_bytes else f"preceded by {before_bytes}"
        label, name = scene.stock.workload.label, scene.stock.definition.outputs[output].name
        around = Mismatch(label, name, index, f"{words} bytes of writes", "none", "inf", 0, 0, "", call=at)
        said, case = _explained(scene, output, at, unwritten(tensor[int(number)]), around)
        if said and behind_bytes == tensor[0].nbytes and not said.startswith("matches"):
            of = f"its elements are {scene.stock.workload.dtype}, {tensor.element_size()} bytes each"
            said = f"twice the bytes that it has were written: {of}; see gm_tensor.dtype"
            case = replace(case, diagnosis=said)
        far = [(before_bytes, "before its start"), (behind_bytes, "behind its end")]
        ways = " and ".join(f"up to {size} bytes {side}" for size, side in far if size)
        yield Finding(finding.status, "; ".join([f"{finding.reason}, {ways}", *([said] if said else [])]), (), (case,))


def _explained(scene: Scene, output: int, at: int, missing: Tensor, mismatch: Mismatch) -> tuple[str, FailingCase]:
    """The mistake, if it is known, and the call."""
    stock, draws, number = scene.stock, scene.draws(at), int(scene.numbers[at])
    inputs = [tensor[number] for tensor in stock.inputs.tensors]
    outputs = [tensor[number] for tensor in scene.outputs.tensors]
    said = diagnosis.diagnose(
        stock.definition,
        stock.workload,
        inputs,
        outputs,
        draws.facts,
        output=output,
        unwritten=missing,
        factor=scene.factor,
    )
    case = feedback.describe_case(
        stock.definition, stock.workload, draws.regime, inputs, None, None, mismatch, diagnosis=said
    )
    return said, case


def unwritten(output: Tensor) -> Tensor:
    """Which elements still hold the pattern that the output was filled with."""
    return output.view(BITS[output.element_size()]) == POISON[output.element_size()]


def spill_bytes(place: Place, tensor: Tensor, number: int) -> tuple[int, int]:
    """How far before the start of one set's tensor, and behind its end, something was written in its pages."""
    item_bytes = place.item_bytes
    pages = torch.empty(0, dtype=BITS[item_bytes]).set_(tensor.untyped_storage())
    pages = pages.narrow(0, (place.base + number * place.pitch) // item_bytes, place.room // item_bytes)
    first = (place.start - place.base) // item_bytes
    end = first + math.prod(place.layout.shape)
    changed = (pages != POISON[item_bytes]).nonzero().flatten()
    before, behind = changed[changed < first], changed[changed >= end]
    return (
        (first - int(before[0])) * item_bytes if before.numel() else 0,
        (int(behind[-1]) + 1 - end) * item_bytes if behind.numel() else 0,
    )
