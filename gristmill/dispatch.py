"""Dispatch: which kernel serves a call, decided by one array lookup; swapped as a whole at a step boundary.

`Dispatcher.active` maps a site's index to an array over its variable axis. The tuple is immutable and replaced by one
assignment, so a step sees one generation and a call in flight keeps its own. Everything slow (loading, smoke tests,
packing) happens in `stage`, which may run in another thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gristmill import durable_file
from gristmill import generation as generations
from gristmill.domain import AxisRange
from gristmill.errors import GristmillError, KillSwitchError, NativeKernelError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.kill_switch import KillSwitch, kill_text, read_kill_switch
from gristmill.native import NativeKernel
from gristmill.records import sha256_hex
from gristmill.route import LARGEST_EXTENT, DispatchSettings, EntryState, LoadedKernel, PackedPool, Route
from gristmill.site import Site

Rows = tuple[Route | None, ...]

SMOKE_EXTENT = 8
"""Smoke tests run at the smallest extent of a range that is at least this, or at the largest below it."""


@dataclass(frozen=True)
class Refusal:
    """One table entry that a host will not run, and why."""

    generation: int
    operator: str
    candidate: str
    reason: str


@dataclass(frozen=True)
class SwapEvent:
    """What a step boundary changed."""

    generation: int
    previous: int
    entries: int


@dataclass(frozen=True)
class Served:
    """What one kernel did."""

    hits: int
    mismatches: int


@dataclass
class _Loaded:
    """A generation with everything it needs to serve."""

    generation: Generation
    kernels: dict[str, LoadedKernel] = field(default_factory=dict)
    pool: PackedPool = field(default_factory=PackedPool)
    states: dict[int, EntryState] = field(default_factory=dict)
    rows: list[Rows] = field(default_factory=list)


class Dispatcher:
    """Holds the active generation and the sites of an engine process. Thread-safe; the hot path reads `active` only.

    Raises:
        KillSwitchError: from the constructor, on a kill switch that means nothing. Later, such a word stops
            all kernels instead.
    """

    def __init__(
        self,
        channel: str = "",
        hardware: str = "",
        settings: DispatchSettings | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings or DispatchSettings()
        self._environ = environ
        self._kill_text = kill_text(environ)
        self.kill: KillSwitch = read_kill_switch(environ)
        self.sites: list[Site] = []
        self.refusals: list[Refusal] = []
        self.active: tuple[Rows, ...] = ()
        self._by_key: dict[object, Site] = {}
        self._loaded = _Loaded(generations.empty(channel, hardware))
        self._staged: _Loaded | None = None
        self._retired: dict[tuple[str, str], Served] = {}
        self._enabled = True
        self._lock = threading.RLock()

    @property
    def generation(self) -> Generation:
        """The one that serves."""
        return self._loaded.generation

    @property
    def enabled(self) -> bool:
        """Whether kernels may run. Setting it is one assignment: the arms of an A/B test switch between blocks."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled = value
        self._publish()

    def site(
        self,
        operator: str,
        dtype: torch.dtype,
        constant_axes: dict[str, int],
        scalars: tuple[float, ...],
        engine: Callable[..., tuple[torch.Tensor, ...]],
    ) -> Site:
        """The site of these axes, made on first use. Sites are made when a model is attached, never during a step."""
        key = (operator, dtype, tuple(sorted(constant_axes.items())), scalars)
        with self._lock:
            site = self._by_key.get(key)
            if site is None:
                site = Site(len(self.sites), operator, dtype, constant_axes, scalars, engine)
                self.sites.append(site)
                self._by_key[key] = site
                self._loaded.rows.append(self._rows_of(site, self._loaded, self.refusals))
                if self._staged is not None:
                    self._staged.rows.append(self._rows_of(site, self._staged, self.refusals))
                self._publish()
            return site

    def stage(self, generation: Generation) -> tuple[Refusal, ...]:
        """Loads, smoke-tests and packs; the next step boundary swaps it in. With a refusal the last good one stays.

        A refusal names each entry that failed on this host. Entries of operators that no site uses are not loaded.
        """
        loaded = _Loaded(generation)
        refusals: list[Refusal] = []
        with self._lock:
            count = len(self.sites)
        for site in self.sites[:count]:
            loaded.rows.append(self._rows_of(site, loaded, refusals))
        with self._lock:
            for site in self.sites[count:]:
                loaded.rows.append(self._rows_of(site, loaded, refusals))
            self.refusals.extend(refusals)
            if not refusals:
                self._staged = loaded
        return tuple(refusals)

    def step_boundary(self) -> SwapEvent | None:
        """Called by the engine between steps: obeys the kill switch, swaps in what is staged."""
        text = kill_text(self._environ)
        if text != self._kill_text:
            self._read_kill_switch(text)
        if self._staged is None:
            return None
        with self._lock:
            staged, self._staged = self._staged, None
            previous = self._loaded.generation.number
            self._retired = self.served()
            self._loaded = staged
            self._publish()
        return SwapEvent(staged.generation.number, previous, len(staged.states))

    def status(self) -> dict[str, Any]:
        """Counters since the last swap, JSON-ready: hits prove use."""
        loaded = self._loaded
        return {
            "generation": loaded.generation.number,
            "enabled": self._enabled,
            "kill": " ".join(filter(None, self._kill_text)),
            "packed_bytes": loaded.pool.size_bytes,
            "entries": [_entry_status(state) for state in loaded.states.values()],
            "fallbacks": self.fallbacks(),
            "refusals": [vars(refusal) for refusal in self.refusals],
        }

    def served(self) -> dict[tuple[str, str], Served]:
        """Counters per table name and candidate since the process started; they never fall."""
        totals = dict(self._retired)
        for state in list(self._loaded.states.values()):
            domain = state.entry.domain
            key = (f"{domain.operator}.{domain.dtype}", state.entry.candidate)
            before = totals.get(key, Served(0, 0))
            totals[key] = Served(before.hits + state.hits, before.mismatches + state.mismatches)
        return totals

    def hits(self) -> dict[str, int]:
        """Calls served per candidate since the process started."""
        totals: dict[str, int] = {}
        for (_, candidate), served in self.served().items():
            totals[candidate] = totals.get(candidate, 0) + served.hits
        return totals

    def fallbacks(self) -> dict[str, int]:
        """Calls per table name that a table covered by operator, but the engine's own kernel served."""
        totals: dict[str, int] = {}
        for site in self.sites:
            name = f"{site.operator}.{site.dtype}"
            totals[name] = totals.get(name, 0) + site.fallbacks
        return totals

    def _read_kill_switch(self, text: tuple[str, str]) -> None:
        self._kill_text = text
        try:
            self.kill = read_kill_switch(self._environ)
        except KillSwitchError as error:
            self.kill = KillSwitch(kernels=True)
            self.refusals.append(Refusal(self.generation.number, "*", "*", str(error)))
        self._publish()

    def _publish(self) -> None:
        """Makes the current rows, or empty ones, what the hot path reads."""
        with self._lock:
            runs = self._enabled and not self.kill.kernels
            self.active = tuple(
                self._allowed(rows) if runs and site.operator not in self.kill.denied else ()
                for site, rows in zip(self.sites, self._loaded.rows, strict=True)
            )

    def _allowed(self, rows: Rows) -> Rows:
        """The rows without the kernels that are denied by digest."""
        if not self.kill.digests:
            return rows
        return tuple(None if row is None or self.kill.denies(row.state.entry) else row for row in rows)

    def _rows_of(self, site: Site, loaded: _Loaded, refusals: list[Refusal]) -> Rows:
        """Routes of one site by extent, each smoke-tested once."""
        rows: list[Route | None] = []
        for table in loaded.generation.tables:
            if (table.operator, table.dtype) != (site.operator, site.dtype):
                continue
            for entry in table.entries:
                extents = _extents_of(entry, site)
                if not extents:
                    continue
                try:
                    route = self._route(site, entry, loaded)
                    problem = _smoke_test(route, extents)
                except GristmillError as error:
                    problem = str(error)
                if problem:
                    refusals.append(Refusal(loaded.generation.number, site.operator, entry.candidate, problem))
                    continue
                rows.extend([None] * (extents[-1] + 1 - len(rows)))
                for extent in extents:
                    rows[extent] = route
        return tuple(rows)

    def _route(self, site: Site, entry: TableEntry, loaded: _Loaded) -> Route:
        kernel = loaded.kernels.get(entry.object.sha256)
        if kernel is None:
            path = loaded.generation.objects.get(entry.object.sha256)
            if path is None:
                raise NativeKernelError(
                    f"generation {loaded.generation.number}: object {entry.object.sha256} is missing in the cache"
                )
            _check_unchanged(path, entry.object.sha256)
            kernel = loaded.kernels[entry.object.sha256] = LoadedKernel(
                NativeKernel(path, entry.needs_setup), loaded.pool
            )
        state = loaded.states.setdefault(id(entry), EntryState(entry))
        return Route(site, state, kernel, self._settings)


def _entry_status(state: EntryState) -> dict[str, Any]:
    entry = state.entry
    return {
        "operator": entry.domain.operator,
        "dtype": entry.domain.dtype,
        "candidate": entry.candidate,
        "ranges": [f"{r.name}={r.low}..{r.high}" for r in entry.domain.ranges],
        "hits": state.hits,
        "failures": state.failures,
        "shadow_checks": state.shadow_checks,
        "mismatches": state.mismatches,
        "enabled": state.enabled,
        "disabled_because": state.disabled_because,
    }


def _extents_of(entry: TableEntry, site: Site) -> range:
    """Extents of the site's variable axis that the entry's domain admits; empty if a constant axis is outside."""
    variable = site.contract.variable_axis
    own = AxisRange(variable, 1, LARGEST_EXTENT)
    for limits in entry.domain.ranges:
        if limits.name == variable:
            own = limits
        elif limits.name not in site.constant_axes or not limits.admits(site.constant_axes[limits.name]):
            return range(0)
    low = max(1, -(-own.low // own.multiple) * own.multiple, own.multiple)
    return range(low, min(own.high, LARGEST_EXTENT) + 1, own.multiple)


def _smoke_test(route: Route, extents: range) -> str:
    """Runs a kernel once against the engine's own on random activations and the site's real weights; empty if right.

    The random numbers come from a generator of their own: the engine's sampling is not disturbed.
    """
    site = route.site
    extent = next((e for e in extents if e >= SMOKE_EXTENT), extents[-1])
    generator = torch.Generator().manual_seed(extent)
    weights = site.live_weights()
    with torch.inference_mode(False), torch.no_grad():
        inputs = []
        for spec, layout in zip(site.contract.inputs, site.input_layouts(extent), strict=True):
            if spec.weight and weights:
                inputs.append(weights[0])
            else:
                inputs.append(torch.rand(layout.shape, generator=generator).sub_(0.5).to(site.torch_dtype))
        outputs = tuple(
            torch.full(layout.shape, float("nan"), dtype=site.torch_dtype) for layout in site.output_layouts(extent)
        )
        if not route.run(extent, tuple(inputs), outputs):
            return f"smoke test at {site.axes(extent)}: {route.state.last_failure or 'its domain refused dense inputs'}"
        problem = route.compare(extent, inputs, outputs)
        route.state.reset_counters()
        if not problem and route.state.entry.needs_setup:
            for weight in weights:
                route.kernel.packed(weight, site)
    return f"smoke test of {problem}" if problem else ""


def _check_unchanged(path: Path, sha256: str) -> None:
    """Verified when it was pulled, an object may have been damaged since.

    Raises:
        NativeKernelError: it is gone, no file, or holds other bytes.
    """
    try:
        found = sha256_hex(durable_file.read(path))
    except OSError as error:
        raise NativeKernelError(f"kernel {path}: {error.strerror}; restart the host to fetch it again") from None
    if found != sha256:
        raise NativeKernelError(f"kernel {path}: changed since it was verified; restart the host to fetch it again")
