"""A route: one kernel-table entry bound to one site, with its counters, its packed weights and its shadow checks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gristmill.errors import CacheError
from gristmill.kernel_table import TableEntry
from gristmill.native import CallFrame, NativeKernel, layout_of
from gristmill.site import Site
from gristmill.trials import Trial, Trials

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.capture import Captures

RELATIVE_TOLERANCE = {"float32": 1e-4, "bfloat16": 2.0**-6, "float64": 1e-10}
"""Of an element and of its output's root mean square. The judge is strict; this finds kernels that are broken here."""


@dataclass(frozen=True)
class DispatchSettings:
    """How much a host trusts its kernels."""

    shadow_every: int = 1024
    """One call in so many, on average, also runs the engine's own kernel and is compared; 0 turns it off."""
    failures_allowed: int = 3
    """A kernel that refuses or raises so often is not run any more by this process, whichever generation names it."""


SAMPLED = 8
"""Places per dimension, at least, by which a packed weight is known again."""


@dataclass(frozen=True, slots=True)
class PackedForm:
    """What a kernel made of one weight, good while the weight has this version and address. Writing through
    `weight.data` or numpy changes neither: that is found in `sample`, or told by `Dispatcher.weights_changed`.
    """

    weight: Tensor
    version: int
    address: int
    packed: Tensor
    packed_address: int
    sample: Tensor
    """Some of the weight's elements as they were then."""

    @property
    def sound(self) -> bool:
        """Whether they still are."""
        return torch.equal(_sample(self.weight), self.sample)


def _sample(weight: Tensor) -> Tensor:
    steps = (slice(None, None, max(1, extent // SAMPLED)) for extent in weight.shape)
    return weight.detach()[tuple(steps)]


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

    def clear(self) -> None:
        """Shares no form of before any more."""
        with self._lock:
            self._forms.clear()

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
        self.forms: dict[int, PackedForm] = {}
        """By the weight's `id`; each keeps its weight, so that no other one gets the same."""
        self._pool = pool
        self._lock = threading.Lock()

    def pack(self, weight: Tensor, site: Site) -> PackedForm | None:
        """The form of a weight as it is now; None where changes to it could not be noticed."""
        if weight.is_inference():
            return None
        with self._lock:
            version, address = weight._version, weight.data_ptr()
            found = self.forms.get(id(weight))
            if found is not None and (found.version, found.address) == (version, address):
                return found
            packed = self.native.setup(
                site.input_layouts(1), site.output_layouts(1), site.scalars, site.contract.weight_index, weight.detach()
            )
            packed = self._pool.shared(weight, (version, address), packed)
            sample = _sample(weight).clone()
            form = self.forms[id(weight)] = PackedForm(weight, version, address, packed, packed.data_ptr(), sample)
            return form

    def forget(self) -> None:
        """Packs every weight anew when it is called with it next."""
        with self._lock:
            self.forms.clear()


class EntryState:
    """Counters of one table entry, shared by its routes."""

    def __init__(self, entry: TableEntry, trials: Trials | None = None) -> None:
        """`trials` note its first call; None: nobody does."""
        self.entry = entry
        self._trials = trials
        self.enabled = True
        self.failures = 0
        self.mismatches = 0
        self.shadow_checks = 0
        self.disabled_because = ""
        self.failed_because = ""
        """As that, where the kernel itself is at fault."""
        self.last_failure = ""
        self._frames: list[tuple[threading.Thread, CallFrame]] = []
        self._past_hits = 0
        """Of frames that were let go, and of graphs that were replayed."""
        self.lock = threading.Lock()

    def enlist(self, frame: CallFrame) -> None:
        """Counts the calling thread's frame from now on; those of threads that have ended are added up.

        Until the kernel was called once, the frame's first call is noted before it is made: only that one is dearer.
        """
        if self._trials is not None:
            frame.function = self._noted(frame, frame.function)
        with self.lock:
            gone = [frame for thread, frame in self._frames if not thread.is_alive()]
            self._past_hits += sum(frame.hits for frame in gone)
            self._frames = [pair for pair in self._frames if pair[1] not in gone]
            self._frames.append((threading.current_thread(), frame))

    def _noted(self, frame: CallFrame, function: Callable[[object], int]) -> Callable[[object], int]:
        def first_call(address: object) -> int:
            trial = self._expected()
            frame.function = function
            try:
                return function(address)
            finally:
                if trial is not None:
                    trial.came_back = True

        return first_call

    def _expected(self) -> Trial | None:
        """None if the kernel was called before, by whichever thread.

        Raises:
            CacheError: it could not be noted; the kernel is disabled.
        """
        with self.lock:
            if self._trials is None:
                return None
            try:
                trial = self._trials.expect(self.entry.object.sha256)
            except CacheError as error:
                self.disable(str(error))
                raise
            self._trials = None
            return trial

    def release(self, frame: CallFrame) -> None:
        """Keeps the count of a frame that its thread uses no more."""
        with self.lock:
            self._past_hits += frame.hits
            self._frames = [pair for pair in self._frames if pair[1] is not frame]

    @property
    def hits(self) -> int:
        """Calls that this kernel has served; exact, because every frame belongs to one thread."""
        with self.lock:
            return self._past_hits + sum(frame.hits for _, frame in self._frames)

    def hits_here(self) -> int:
        """Those of the calling thread."""
        here = threading.current_thread()
        with self.lock:
            return sum(frame.hits for thread, frame in self._frames if thread is here)

    def replayed(self, hits: int) -> None:
        """Counts calls that a captured graph made."""
        with self.lock:
            self._past_hits += hits

    def fail(self, reason: str) -> None:
        """Disables it for what it did."""
        self.failed_because = self.failed_because or reason
        self.disable(reason)

    def disable(self, reason: str) -> None:
        self.enabled = False
        self.disabled_because = self.disabled_because or reason


class Route:
    """How one site calls one kernel. Lanes run it; what happens seldom is here."""

    def __init__(
        self, site: Site, state: EntryState, kernel: LoadedKernel, settings: DispatchSettings, captures: Captures
    ) -> None:
        self.site = site
        self.state = state
        self.kernel = kernel
        self.weight_index = site.contract.weight_index if state.entry.needs_setup else -1
        self._settings = settings
        self._captures = captures

    def frame(self, extent: int, inputs: Sequence[Tensor] = ()) -> CallFrame | None:
        """A frame for the calling thread; None if the domain does not admit such strides.

        Dense inputs may have any leading dimensions; others must have the contract's shape.
        """
        layouts = list(self.site.input_layouts(extent))
        for position, tensor in enumerate(inputs):
            if not tensor.is_contiguous():
                found = layout_of(tensor)
                if found.shape != layouts[position].shape or not self.state.entry.domain.layout.admits(found):
                    return None
                layouts[position] = found
        frame = self.kernel.native.frame(layouts, self.site.output_layouts(extent), self.site.scalars)
        frame.next_shadow = self._next_shadow(0)
        return frame

    def packed(self, weight: Tensor) -> PackedForm | None:
        """As `LoadedKernel.pack`."""
        return self.kernel.pack(weight, self.site)

    def fail(self, reason: str) -> None:
        """Notes that a call failed."""
        with self.state.lock:
            self.state.failures += 1
            self.state.last_failure = reason
            if self.state.failures >= self._settings.failures_allowed:
                self.state.fail(f"failed {self.state.failures} times, last: {reason}")

    def agrees(self, frame: CallFrame, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        """A shadow check. In the middle of a graph capture, where nothing may be looked at, it is put off. One that
        cannot be made has found nothing good of the kernel either.
        """
        frame.next_shadow = self._next_shadow(frame.hits)
        if self._captures.here():
            return True
        try:
            difference = self.compare(self.site.extent(inputs[0]), inputs, outputs)
        except Exception as error:  # the engine's own kernel, or there is no memory for a second answer
            self.fail(f"shadow check: {type(error).__name__}: {error}")
            return False
        with self.state.lock:
            self.state.shadow_checks += 1
            if difference:
                self.state.mismatches += 1
                self.state.fail(f"shadow check: {difference}")
        return not difference

    def compare(self, extent: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
        """Runs the engine's own kernel on the same inputs; empty if both agree, else where they differ most."""
        shapes = [layout.shape for layout in self.site.input_layouts(extent)]
        expected = self.site.run_engine(*(t.reshape(s) for t, s in zip(inputs, shapes, strict=True)))
        for spec, wanted, found in zip(self.site.contract.outputs, expected, outputs, strict=True):
            difference = difference_of(found.reshape(wanted.shape), wanted, RELATIVE_TOLERANCE[self.site.dtype])
            if difference:
                return f"{spec.name} at {self.site.contract.variable_axis}={extent}: {difference}"
        return ""

    def _next_shadow(self, hits: int) -> int:
        """Random, so that checks do not fall on the same layer each time."""
        every = self._settings.shadow_every
        return hits + random.randint(1, 2 * every - 1) if every else 0


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
