"""A route: one kernel-table entry bound to one site, ready to be called from the engine's hot path."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import is_grad_enabled

from gristmill.domain import Layout
from gristmill.kernel_table import TableEntry
from gristmill.native import CallFrame, NativeKernel, layout_of
from gristmill.site import Site

if TYPE_CHECKING:
    from torch import Tensor

RELATIVE_TOLERANCE = {"float32": 1e-4, "bfloat16": 2.0**-6, "float64": 1e-10}
"""Of an element and of its output's root mean square. The judge is strict; this finds kernels that are broken here."""
LARGEST_EXTENT = 65535
"""Lookup is an array over the variable axis; calls beyond its end go to the engine."""


@dataclass(frozen=True)
class DispatchSettings:
    """How much a host trusts its kernels."""

    shadow_every: int = 1024
    """One call in so many, on average, also runs the engine's own kernel and is compared; 0 turns it off."""
    failures_allowed: int = 3
    """A kernel that refuses or raises so often is disabled until the next generation."""


class PackedPool:
    """Packed forms of one generation's weights. Kernels of neighbouring ranges may share them."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[tuple[int, int], list[Tensor]]] = {}
        self._lock = threading.Lock()

    def shared(self, weight: Tensor, state: tuple[int, int], packed: Tensor) -> Tensor:
        """`packed`, or an equal form of the same weight in the same state (version and address)."""
        with self._lock:
            known, forms = self._forms.get(id(weight), (state, []))
            if known != state:
                forms = []
            self._forms[id(weight)] = (state, forms)
            for form in forms:
                if form.shape == packed.shape and torch.equal(_words(form), _words(packed)):
                    return form
            forms.append(packed)
            return packed

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(form.numel() for _, forms in self._forms.values() for form in forms)


def _words(packed: Tensor) -> Tensor:
    """The same bytes in units that compare eight times faster, where their number allows."""
    return packed.view(torch.int64) if packed.numel() % 8 == 0 else packed


class LoadedKernel:
    """One shared object with the weights it has packed, which live as long as the generation that uses them."""

    def __init__(self, native: NativeKernel, pool: PackedPool) -> None:
        self.native = native
        self._pool = pool
        self._packed: dict[int, tuple[Tensor, int, int, Tensor]] = {}
        self._lock = threading.Lock()

    def packed(self, weight: Tensor, site: Site) -> Tensor | None:
        """The packed form of a weight as it is now; None where changes to it could not be noticed."""
        if weight.is_inference():
            return None
        found = self._packed.get(id(weight))
        if found is not None and found[1] == weight._version and found[2] == weight.data_ptr():
            return found[3]
        with self._lock:
            version = weight._version
            packed = self.native.setup(
                site.input_layouts(1), site.output_layouts(1), site.scalars, site.contract.weight_index, weight.detach()
            )
            packed = self._pool.shared(weight, (version, weight.data_ptr()), packed)
            self._packed[id(weight)] = (weight, version, weight.data_ptr(), packed)
            return packed


class EntryState:
    """Counters of one table entry, shared by its routes."""

    def __init__(self, entry: TableEntry) -> None:
        self.entry = entry
        self.enabled = True
        self.failures = 0
        self.mismatches = 0
        self.shadow_checks = 0
        self.disabled_because = ""
        self.last_failure = ""
        self._frames: list[CallFrame] = []
        self.lock = threading.Lock()

    def enlist(self, frame: CallFrame) -> None:
        with self.lock:
            self._frames.append(frame)

    @property
    def hits(self) -> int:
        """Calls that this kernel has served; exact, because every frame belongs to one thread."""
        return sum(frame.hits for frame in list(self._frames))

    def reset_counters(self) -> None:
        """Forgets the calls of a smoke test: only the engine's calls prove use."""
        for frame in self._frames:
            frame.hits = 0
        self.failures = self.shadow_checks = 0

    def disable(self, reason: str) -> None:
        self.enabled = False
        self.disabled_because = self.disabled_because or reason


class Route:
    """Runs one kernel for one site. False from `run` means that the engine's own kernel must serve the call."""

    __slots__ = ("_local", "_settings", "_weight_index", "dtype", "kernel", "layout", "scalars", "site", "state")

    def __init__(self, site: Site, state: EntryState, kernel: LoadedKernel, settings: DispatchSettings) -> None:
        self.site = site
        self.state = state
        self.kernel = kernel
        self.dtype = site.torch_dtype
        self.scalars = site.scalars
        self.layout: Layout = state.entry.domain.layout
        self._settings = settings
        self._weight_index = site.contract.weight_index if state.entry.needs_setup else -1
        self._local = threading.local()

    def run(self, extent: int, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> bool:
        """Fills `outputs`. Dense inputs may have any leading dimensions; others must have the contract's shape."""
        if not self.state.enabled or is_grad_enabled():
            return False
        dtype = self.dtype
        key: object = extent
        for tensor in inputs:
            if tensor.dtype is not dtype or not tensor.is_cpu:
                return False
            if not tensor.is_contiguous():
                key = None
        try:
            frame = self._local.frames[key]
        except (AttributeError, KeyError):
            found = self._prepare(extent, key, inputs)
            if found is None:
                return False
            frame = found
        try:
            if self._weight_index >= 0:
                packed = self.kernel.packed(inputs[self._weight_index], self.site)
                if packed is None:
                    return False
                frame.use_packed(packed.data_ptr())
            code = frame.run((*inputs, *outputs))
        except Exception as error:  # whatever went wrong in a kernel, serving goes on with the engine's own
            return self._fail(f"{type(error).__name__}: {error}")
        if code:
            return self._fail(f"gm_run returned {code}")
        frame.hits += 1
        if frame.hits == frame.next_shadow:
            return self._shadow(frame, extent, inputs, outputs)
        return True

    def _prepare(self, extent: int, key: object, inputs: tuple[Tensor, ...]) -> CallFrame | None:
        """The frame for a call pattern that this thread sees for the first time, or a strided one."""
        layouts = self.site.input_layouts(extent)
        if key is None:
            observed = tuple(layout_of(t) for t in inputs)
            layouts = tuple(
                own if t.is_contiguous() else seen for own, seen, t in zip(layouts, observed, inputs, strict=True)
            )
            shapes_fit = all(
                own.shape == seen.shape for own, seen in zip(self.site.input_layouts(extent), layouts, strict=True)
            )
            if not shapes_fit or not all(self.layout.admits(layout) for layout in layouts):
                return None
            key = (extent, layouts)
        frames: dict[object, CallFrame] = self._local.__dict__.setdefault("frames", {})
        frame = frames.get(key)
        if frame is None:
            frame = self.kernel.native.frame(layouts, self.site.output_layouts(extent), self.scalars)
            frame.next_shadow = self._next_shadow(0)
            frames[key] = frame
            self.state.enlist(frame)
        return frame

    def _next_shadow(self, hits: int) -> int:
        """Random, so that checks do not fall on the same layer each time."""
        every = self._settings.shadow_every
        return hits + random.randint(1, 2 * every - 1) if every else 0

    def _fail(self, reason: str) -> bool:
        with self.state.lock:
            self.state.failures += 1
            self.state.last_failure = reason
            if self.state.failures >= self._settings.failures_allowed:
                self.state.disable(f"failed {self.state.failures} times, last: {reason}")
        return False

    def _shadow(self, frame: CallFrame, extent: int, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> bool:
        frame.next_shadow = self._next_shadow(frame.hits)
        difference = self.compare(extent, inputs, outputs)
        with self.state.lock:
            self.state.shadow_checks += 1
            if difference:
                self.state.mismatches += 1
                self.state.disable(f"shadow check: {difference}")
        return not difference

    def compare(self, extent: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
        """Runs the engine's own kernel on the same inputs; empty if both agree, else where they differ most."""
        shapes = [layout.shape for layout in self.site.input_layouts(extent)]
        expected = self.site.engine(*(t.reshape(s) for t, s in zip(inputs, shapes, strict=True)), *self.scalars)
        for spec, wanted, found in zip(self.site.contract.outputs, expected, outputs, strict=True):
            difference = difference_of(found.reshape(wanted.shape), wanted, RELATIVE_TOLERANCE[self.site.dtype])
            if difference:
                return f"{spec.name} at {self.site.contract.variable_axis}={extent}: {difference}"
        return ""


def difference_of(found: Tensor, wanted: Tensor, relative_tolerance: float) -> str:
    """Empty if `|found - wanted| <= tolerance * (|wanted| + rms(wanted))` everywhere and non-finite values coincide."""
    found, wanted = found.double(), wanted.double()
    finite = torch.isfinite(wanted)
    odd = ~finite & ~((found == wanted) | (torch.isnan(found) & torch.isnan(wanted)))
    if bool(odd.any()):
        return f"{int(odd.sum())} non-finite elements differ"
    wanted = torch.where(finite, wanted, 0.0)
    error = torch.where(finite, (found - wanted).abs(), 0.0)
    allowed = relative_tolerance * (wanted.abs() + wanted.square().mean().sqrt()) + torch.finfo(torch.float32).tiny
    excess = torch.nan_to_num(error / allowed, nan=float("inf"))
    worst = float(excess.max()) if excess.numel() else 0.0
    return f"{int((excess > 1).sum())} elements differ, worst {worst:.3g} times the tolerance" if worst > 1 else ""
