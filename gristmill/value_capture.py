"""Values of a few calls: what activations really hold, for whoever sharpens an operator's input distributions.

Off unless `GRISTMILL_CAPTURE_VALUES` says how many bytes a process may copy in its life. Only activations in floating
point are copied: no weight, no token ids, no prompt, and nothing of operators whose input may be logits, from which
tokens can be read. What a prompt was can in part be told from activations all the same, so treat them as you treat
prompts. They lie in the store under `values/`, apart from all else, and nothing of the loop reads them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.errors import SpoolError

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.site import Site

VARIABLE = "GRISTMILL_CAPTURE_VALUES"
MAX_CALL_BYTES = 4 << 20
"""Of one call: copies are made between the operators of a step that serves."""
LOGITS = ("softmax",)
"""Operators that engines give logits to."""
CALLS_PER_PATTERN = 2
"""Between two flushes."""


@dataclass(frozen=True)
class CapturedInput:
    """One activation of one call."""

    operator: str
    dtype: str
    axes: dict[str, int]
    call: int
    """Inputs of one call have the same number; a process never gives it twice."""
    position: int
    """Among the operator's inputs."""
    shape: tuple[int, ...]
    content: bytes
    """Dense, row-major, in the machine's byte order (little-endian everywhere that torch runs)."""


class ValueCapture:
    """Copies values until its budget is spent. One thread notes, any may take."""

    def __init__(self, budget_bytes: int) -> None:
        self.left_bytes = budget_bytes
        self.passed_over = 0
        """Calls that were too large, or that the budget did not allow."""
        self._calls = 0
        self._seen: Counter[tuple[int, int]] = Counter()
        self._found: list[CapturedInput] = []
        self._lock = threading.Lock()

    def note(self, site: Site, inputs: Sequence[Tensor]) -> None:
        """One call; its inputs in the contract's order. Called for those of traced steps only."""
        extent = site.extent(inputs[0])
        if site.operator in LOGITS or self._seen[site.index, extent] >= CALLS_PER_PATTERN:
            return
        chosen = [
            (position, tensor)
            for position, tensor in enumerate(inputs)
            if not site.contract.inputs[position].weight and tensor.is_floating_point()
        ]
        size_bytes = sum(tensor.numel() * tensor.element_size() for _, tensor in chosen)
        if not chosen or size_bytes > min(self.left_bytes, MAX_CALL_BYTES):
            self.passed_over += 1
            return
        self._seen[site.index, extent] += 1
        self.left_bytes -= size_bytes
        found = [
            CapturedInput(
                operator=site.operator,
                dtype=site.dtype,
                axes=site.axes(extent),
                call=self._calls,
                position=position,
                shape=tuple(tensor.shape),
                content=_bytes_of(tensor),
            )
            for position, tensor in chosen
        ]
        self._calls += 1
        with self._lock:
            self._found += found

    def take(self) -> tuple[CapturedInput, ...]:
        """What was noted since the last time."""
        with self._lock:
            found, self._found = self._found, []
            self._seen.clear()
        return tuple(found)


def _bytes_of(tensor: Tensor) -> bytes:
    import torch

    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def from_environment(environ: Mapping[str, str]) -> ValueCapture | None:
    """The capture that the environment asks for; None if it asks for none.

    Raises:
        SpoolError: the variable is no number of bytes.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise SpoolError(f"{VARIABLE} is {text[:40]!r}: expected how many bytes may be copied, or nothing")
    return ValueCapture(int(text)) if int(text) else None
