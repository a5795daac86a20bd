"""Staging: a generation made ready to serve, entry by entry. What is wrong with an entry costs that entry alone.

An entry whose object is missing, damaged, built elsewhere or wrong on this host is left out, and its calls stay with
the engine. A generation that contradicts itself is not used at all: see `check_consistent`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from gristmill import records
from gristmill.capture import Captures
from gristmill.domain import AxisRange
from gristmill.errors import GristmillError, InconsistentGenerationError, NativeKernelError
from gristmill.generation import Generation
from gristmill.hook import Hook, Instruments
from gristmill.kernel_table import KernelTable, TableEntry
from gristmill.lane import View
from gristmill.native import NativeKernel
from gristmill.route import DispatchSettings, EntryState, LoadedKernel, PackedForm, PackedPool, Route
from gristmill.site import Site
from gristmill.trials import SMOKE_TEST, Trials, noted
from gristmill.watchdog import OverdueError, Watchdog

LARGEST_EXTENT = 65535
"""Lookup is an array over the variable axis; calls beyond its end go to the engine."""

SMOKE_EXTENT = 8
"""Smoke tests run at the smallest extent of a range that is at least this, or at the largest below it."""


@dataclass(frozen=True)
class Refusal:
    """One table entry that a host does not run, or a whole generation, and why."""

    generation: int
    operator: str
    candidate: str
    reason: str
    whole: bool = False
    """Nothing of the generation is used; the last good one goes on serving."""


@dataclass
class StagedGeneration:
    """A generation with everything that it needs to serve."""

    generation: Generation
    settings: DispatchSettings
    captures: Captures
    trials: Trials = field(default_factory=Trials)
    permits: Callable[[TableEntry], bool] = lambda entry: True
    """Asked right before an entry is looked at: one that the operator of this host denies is not even loaded."""
    failed: dict[str, str] = field(default_factory=dict)
    """Objects that have failed in this process, by digest, with the reason; those that hang in here are added."""
    pool: PackedPool = field(default_factory=PackedPool)
    views: list[View] = field(default_factory=list)
    """By the sites' index."""
    states: dict[int, EntryState] = field(default_factory=dict)
    """By the `id` of the entries that serve at some site."""
    refusals: list[Refusal] = field(default_factory=list)
    withheld: list[TableEntry] = field(default_factory=list)
    """Entries that were not permitted."""
    _kernels: dict[str, LoadedKernel] = field(default_factory=dict)
    _to_look_at: list[PackedForm] = field(default_factory=list)

    def add(self, *sites: Site) -> None:
        """Loads, smoke-tests and packs what the next sites can use; entries that they can't use are not looked at.

        Raises:
            InconsistentGenerationError: two entries claim one call; nothing was run then.
        """
        claims = [tuple(_claims(self.generation, site)) for site in sites]
        with contextlib.closing(Watchdog()) as watchdog:
            for site, claimed in zip(sites, claims, strict=True):
                rows: list[Route | None] = []
                for entry, extents in claimed:
                    route = self._tested(watchdog, site, entry, extents)
                    if route is not None:
                        rows.extend([None] * (extents[-1] + 1 - len(rows)))
                        rows[extents.start : extents[-1] + 1 : extents.step] = [route] * len(extents)
                self.views.append(View(site, tuple(rows)))

    def forget_weights(self) -> None:
        """Packs each again at its next call."""
        for kernel in [*self._kernels.values()]:
            kernel.forget()
        self.pool.clear()
        self._to_look_at.clear()

    def next_form(self) -> PackedForm | None:
        """Another packed weight each time, until all have had their turn; None where there is none."""
        if not self._to_look_at:
            self._to_look_at = [form for kernel in [*self._kernels.values()] for form in [*kernel.forms.values()]]
        try:
            return self._to_look_at.pop()
        except IndexError:  # none, or another thread has taken it
            return None

    def _tested(self, watchdog: Watchdog, site: Site, entry: TableEntry, extents: range) -> Route | None:
        if not self.permits(entry):
            if entry not in self.withheld:
                self.withheld.append(entry)
            return None
        digest = entry.object.sha256
        problem = self.failed.get(digest) or self.trials.objection(digest)
        kernel = None
        if not problem:
            kernel, problem = self._tried(watchdog, site, entry, extents)
            if kernel is not None and problem:  # it ran, and was wrong: no other table has it tried again
                self.failed[digest] = f"has failed in this process before: {problem}"
        if kernel is None or problem:
            self.refusals.append(Refusal(self.generation.number, site.operator, entry.candidate, problem))
            return None
        state = self.states.setdefault(id(entry), EntryState(entry, self.trials))
        return Route(site, state, kernel, self.settings, self.captures)

    def _tried(
        self, watchdog: Watchdog, site: Site, entry: TableEntry, extents: range
    ) -> tuple[LoadedKernel | None, str]:
        """The kernel, and what is wrong with it; where the process dies in here, a note says so to the next."""
        digest = entry.object.sha256

        def work(beat: Callable[[], None]) -> tuple[LoadedKernel, str]:
            kernel = self._kernel(entry)
            beat()
            alone = DispatchSettings(shadow_every=0)
            return kernel, _smoke_test(Route(site, EntryState(entry), kernel, alone, self.captures), extents, beat)

        try:
            with noted(self.trials, digest, SMOKE_TEST) as trial:
                try:
                    found = watchdog.run(work)
                except OverdueError as error:
                    trial.hangs()
                    self.failed[digest] = f"smoke test at {site.axes(extents[0])}: {error}"
                    return None, self.failed[digest]
            self.trials.passed(digest, SMOKE_TEST)
            return found
        except GristmillError as error:
            return None, str(error)
        except Exception as error:  # no memory for packed weights, or whatever a kernel brings about: it costs itself
            return None, f"{type(error).__name__}: {error}"

    def _kernel(self, entry: TableEntry) -> LoadedKernel:
        digest = entry.object.sha256
        kernel = self._kernels.get(digest)
        if kernel is None:
            path = self.generation.objects.get(digest)
            if path is None:
                raise NativeKernelError(
                    f"generation {self.generation.number}: object {digest} is missing in the cache; restart the host "
                    "to fetch it again"
                )
            kernel = self._kernels[digest] = LoadedKernel(NativeKernel(path, entry.needs_setup, digest), self.pool)
        return kernel


def check_consistent(generation: Generation, hardware: str, sites: Iterable[Site]) -> None:
    """What whoever signed a generation must have made sure of; where it does not hold, nobody knows what was meant.

    `hardware` is the host's; empty if it does not say.

    Raises:
        InconsistentGenerationError: a table of other hardware, two tables of one operator and dtype, an entry that
            is of another operator or dtype than its table, one object called in two ways, or two entries that claim
            one call of a site.
    """
    names: set[str] = set()
    setups: dict[str, bool] = {}
    for table in generation.tables:
        for wanted in filter(None, (generation.hardware, hardware)):
            if table.hardware != wanted:
                raise _flaw(generation, table, f"is for {table.hardware}, not {wanted}")
        if table.name in names:
            raise _flaw(generation, table, "is there twice")
        names.add(table.name)
        for entry in table.entries:
            if (entry.domain.operator, entry.domain.dtype) != (table.operator, table.dtype):
                what = f"holds an entry for {entry.domain.operator}.{entry.domain.dtype}"
                raise _flaw(generation, table, what)
            if setups.setdefault(entry.object.sha256, entry.needs_setup) != entry.needs_setup:
                raise _flaw(
                    generation, table, f"has one object with and without setup: {records.short(entry.object.sha256)}"
                )
    for site in sites:
        for _ in _claims(generation, site):
            pass


def _flaw(generation: Generation, table: KernelTable, what: str) -> InconsistentGenerationError:
    return InconsistentGenerationError(
        table.operator,
        f"generation {generation.number}: table {table.name} {what}; nothing of it is used, and the last good one "
        "stays: promote a sound one",
    )


def _claims(generation: Generation, site: Site) -> Iterator[tuple[TableEntry, range]]:
    """Entries that admit calls of a site, with the extents that they do."""
    taken = bytearray(LARGEST_EXTENT + 1)
    for table in generation.tables:
        if (table.operator, table.dtype) != (site.operator, site.dtype):
            continue
        for entry in table.entries:
            extents = extents_of(entry, site)
            if not extents:
                continue
            if any(taken[extents.start : extents[-1] + 1 : extents.step]):
                what = (
                    f"has two kernels for one call; one is {records.short(entry.candidate)} at {site.axes(extents[0])}"
                )
                raise _flaw(generation, table, what)
            taken[extents.start : extents[-1] + 1 : extents.step] = b"\1" * len(extents)
            yield entry, extents


def extents_of(entry: TableEntry, site: Site) -> range:
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


class _Trial:
    """Stands in for a dispatcher that serves one route, so that the engine's own way to it is what is tested."""

    def __init__(self, route: Route, extent: int) -> None:
        site = route.site
        self.active = {site.index: View(site, (*(None,) * extent, route), counted=False)}


def _smoke_test(route: Route, extents: range, beat: Callable[[], None]) -> str:
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
        hook = Hook(Instruments(_Trial(route, extent), None), site, lambda *_: outputs, lambda *_: ())
        if not hook.call(*inputs):
            if not route.state.last_failure:
                raise NativeKernelError(f"smoke test at {site.axes(extent)}: its domain refused dense inputs")
            return f"smoke test at {site.axes(extent)}: {route.state.last_failure}"
        problem = route.compare(extent, inputs, outputs)
        if not problem and route.state.entry.needs_setup:
            for weight in weights:
                beat()
                route.packed(weight)
    return f"smoke test of {problem}" if problem else ""
