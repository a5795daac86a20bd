"""A draft: source, the definition that it makes, and whether that gives what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill import durable_file
from kernels.definition import Definition
from kernels.drafts.extents import Pair
from kernels.drafts.source import DraftSource, Seen
from kernels.errors import DraftError

ROUNDINGS = 32.0
"""A recorded answer may be off from the drafted reference by so many units in the last place of the largest."""
ROWS = 7
"""Of a call that is computed in two parts, to see whether its rows stand alone."""
CUT = 3


@dataclass(frozen=True)
class Draft:
    """A definition for a person to review."""

    name: str
    source: str
    definition: Definition

    def write(self, folder: Path) -> Path:
        """The file, which appears whole or not at all.

        Raises:
            DraftError: there is one already: somebody may have worked on it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.py"
        if path.exists():
            raise DraftError(f"{path}: exists already; move or remove it, or draft into another folder")
        durable_file.write(path, self.source.encode())
        return path


def draft(name: str, first: Seen, second: Seen, known: Mapping[Pair, str]) -> Draft:
    """Drafts a definition of what was recorded twice.

    Args:
        known: names for extents, by their sizes in both recordings.

    Raises:
        DraftError: why it cannot be drafted, or that the draft does not give what was recorded.
    """
    written = DraftSource(name, first, second, known)
    text = written.text()
    definition = executed(text)
    for seen in (first, second):
        _check(definition, seen)
    if definition.row_axis and not _rows_stand_alone(definition):
        text = written.text(row_axis=False)
        definition = executed(text)
    return Draft(name, text, definition)


def executed(source: str) -> Definition:
    """The definition that the source makes."""
    names: dict[str, Any] = {"__name__": "draft"}
    exec(compile(source, "draft", "exec"), names)  # our own text, made of recorded operations
    made: Definition = names["DEFINITION"]
    return made


def _check(definition: Definition, seen: Seen) -> None:
    recording = seen.recording
    values = [value for value in seen.cuts.inputs(seen.piece) if recording.tensor(value).dim() > 0]
    given = [_squeezed(recording.tensor(value).detach()).double() for value in values]
    found = definition.reference(*given)
    for value, answer in zip(seen.cuts.outputs(seen.piece), found, strict=True):
        wanted = _squeezed(recording.tensor(value).detach())
        off = float((wanted.double() - answer).abs().max())
        allowed = ROUNDINGS * torch.finfo(wanted.dtype).eps * max(float(wanted.abs().max()), 1e-30)
        if not off <= allowed:
            raise DraftError(
                f"draft of {definition.name}: its reference is off by {off:.3g} from what was recorded, where "
                f"{allowed:.3g} would be roundings; the recording holds something that drafts are not written of"
            )


def _rows_stand_alone(definition: Definition) -> bool:
    """Whether each part of the rows gives its part of the answer."""
    axis, edge = definition.row_axis, definition.edge_axes[-1]
    axes = {**edge, axis: ROWS}
    inputs = definition.make_inputs(torch.Generator().manual_seed(0), axes, "float32", definition.regimes[0])
    exact = [tensor.double() for tensor in inputs]

    def part(first: int, count: int) -> tuple[Tensor, ...]:
        own = [
            tensor.narrow(spec.dims.index(axis), first, count) if axis in spec.dims else tensor
            for spec, tensor in zip(definition.inputs, exact, strict=True)
        ]
        return definition.reference(*own)

    halves = [part(0, CUT), part(CUT, ROWS - CUT)]
    for place, (spec, whole) in enumerate(zip(definition.outputs, definition.reference(*exact), strict=True)):
        joined = torch.cat([half[place] for half in halves], spec.dims.index(axis))
        if not torch.allclose(joined, whole, rtol=1e-9, atol=1e-12):
            return False
    return True


def _squeezed(tensor: Tensor) -> Tensor:
    return tensor.reshape([extent for extent in tensor.shape if extent != 1])
