"""Dispatch: which kernel serves a call, decided by one array lookup; swapped as a whole at a step boundary.

`Dispatcher.active` maps a site's index to a view: an array over its variable axis. The tuple is immutable and replaced
by one assignment, so a step sees one generation and a call in flight keeps its own. Everything slow (loading, smoke
tests, packing) happens in `stage`, which may run in another thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gristmill import generation as generations
from gristmill import limits
from gristmill.capture import Capture, Captures
from gristmill.errors import InconsistentGenerationError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.kill_switch import KillSwitch, kill_text, read_kill_switch
from gristmill.lane import View
from gristmill.route import DispatchSettings, EntryState
from gristmill.site import Site
from gristmill.staging import Refusal, StagedGeneration, check_consistent
from gristmill.trials import Trials


@dataclass(frozen=True)
class SwapEvent:
    """What a step boundary changed."""

    generation: int
    previous: int
    entries: int


@dataclass(frozen=True)
class Served:
    """What one kernel did."""

    hits: int = 0
    mismatches: int = 0


class Dispatcher:
    """Holds the active generation and the sites of an engine process. Thread-safe; the hot path reads `active` only.

    A kill switch that means nothing stops all kernels, and nothing else: an engine starts and serves whatever it says.
    """

    def __init__(
        self,
        channel: str = "",
        hardware: str = "",
        settings: DispatchSettings | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings or DispatchSettings()
        self.hardware = hardware
        """Key of what the engine's model is computed on; tables for any other are refused."""
        self._environ = environ
        self._kill_text = kill_text(environ)
        self.kill: KillSwitch = read_kill_switch(environ)
        self.sites: list[Site] = []
        self.refusals: list[Refusal] = []
        """Newest last."""
        if self.kill.problem:
            self.refusals.append(Refusal(0, "*", "*", self.kill.problem))
        self.active: tuple[View, ...] = ()
        self.trials = Trials()
        """Where kernels are noted before they run; to be set before anything is staged."""
        self.epoch = 0
        """Grows whenever something else serves: a generation, a kill, an arm of an A/B test."""
        self._by_key: dict[object, Site] = {}
        self._lock = threading.RLock()
        self._captures = Captures(self._lock)
        self._failed: dict[str, str] = {}
        """Objects that were disabled for what they did, by digest, with the reason."""
        self._loaded = StagedGeneration(generations.empty(channel, hardware), self._settings, self._captures)
        self._staged: StagedGeneration | None = None
        self._without: dict[tuple[int, bool], View] = {}
        """Views without kernels, by the site's index and whether it is sampled."""
        self._permitted: dict[View, View] = {}
        """What the kill switch left of a view."""
        self._previous: Iterable[EntryState] = ()
        """Of the generation before: calls that it had begun when it was swapped out still count."""
        self._retired: dict[tuple[str, str], Served] = {}
        """Of the generations before that one."""
        self._enabled = True

    @property
    def lifted(self) -> bool:
        """Whether the kill switch lets kernels run that it kept from being loaded: stage the generation again."""
        with self._lock:
            withheld = (self._staged or self._loaded).withheld
            return any(self._permits(entry) for entry in withheld)

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
                self._add_late(site, self._loaded)
                if self._staged is not None:
                    self._add_late(site, self._staged)
                self._publish()
            return site

    def stage(self, generation: Generation) -> tuple[Refusal, ...]:
        """Loads, smoke-tests and packs; the next step boundary swaps it in.

        A refusal names an entry that failed on this host: its calls stay with the engine, and so do those of entries
        that the kill switch denies, which are not loaded (see `lifted`). One that is `whole` says that the generation
        contradicts itself: it is not staged, and what serves goes on serving. Entries of operators that no site uses
        are not loaded.

        Tables that it holds no more, and kernels of theirs, stop before anything is loaded; if it then cannot be
        staged (whatever that raises), all else that it does not hold stops as well, and calls are the engine's.
        """
        staged = self._prepared(generation)
        with self._lock:
            count = len(self.sites)
        try:
            check_consistent(generation, self.hardware, self.sites[:count])
            self._take_back(generation, replaced=False)
            staged.add(*self.sites[:count])
            with self._lock:
                staged.add(*self.sites[count:])
                self._staged = staged
        except InconsistentGenerationError as error:
            staged.refusals = [_whole(generation, error)]
        except BaseException:
            self._take_back(generation, replaced=True)
            raise
        with self._lock:
            self.refusals.extend(one for one in staged.refusals if one not in self.refusals)
        return tuple(staged.refusals)

    def step_boundary(self) -> SwapEvent | None:
        """Called by the engine between steps: obeys the kill switch, swaps in what is staged, and looks at one packed
        weight after the other, whether it is as it was packed.

        While a thread captures a graph nothing is swapped in; the first boundary after it does.
        """
        self.trials.settle()
        form = self._loaded.next_form()
        if form is not None and not form.sound:
            self.weights_changed()
        text = kill_text(self._environ)
        if text != self._kill_text:
            self._read_kill_switch(text)
        if self._staged is None:
            return None
        with self._lock:
            if self._staged is None or self._captures:
                return None
            staged, self._staged = self._staged, None
            previous = self._loaded.generation.number
            self._note_failed()
            for state in staged.states.values():  # what has failed since it was staged
                reason = self._failed.get(state.entry.object.sha256)
                if reason:
                    state.disable(reason)
            self._retired = _added(self._retired, self._previous)
            self._previous = self._loaded.states.values()
            self._loaded = staged
            self._permitted.clear()
            self._publish()
        return SwapEvent(staged.generation.number, previous, len(staged.states))

    def weights_changed(self) -> None:
        """To be called between steps by whoever has written to weights past torch: through `weight.data`, `detach()`
        of inference, or numpy. What torch sees (`weight.copy_`) needs no call.
        """
        with self._lock:
            for generation in filter(None, (self._loaded, self._staged)):
                generation.forget_weights()

    def capture(self) -> Capture:
        """To be entered by a thread while it captures a CUDA graph; see `gristmill.capture`."""
        return Capture(self._captures, lambda: self.epoch, lambda: list(self._loaded.states.values()))

    def forked(self) -> None:
        """In a forked child: drops all kernels, and locks that its parent's threads may have held."""
        self._lock = threading.RLock()
        self._captures = Captures(self._lock)
        self.trials = Trials()
        self._staged = None
        empty = generations.empty(self._loaded.generation.channel, self.hardware)
        self._loaded = StagedGeneration(empty, self._settings, self._captures)
        self._loaded.add(*self.sites)
        self._permitted.clear()
        self._publish()

    def status(self) -> dict[str, Any]:
        """Counters since the last swap, JSON-ready: hits prove use."""
        loaded = self._loaded
        return {
            "generation": loaded.generation.number,
            "enabled": self._enabled,
            "kill": limits.shortened(self.kill.problem or " ".join(" ".join(self._kill_text).split())),
            "packed_bytes": loaded.pool.size_bytes,
            "entries": [_entry_status(state) for state in loaded.states.values()],
            "fallbacks": self.fallbacks(),
            "refusals": [vars(refusal) for refusal in self.refusals],
        }

    def served(self) -> dict[tuple[str, str], Served]:
        """Counters per table name and candidate since the process started; they never fall."""
        with self._lock:
            return _added(self._retired, [*self._previous, *self._loaded.states.values()])

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

    def _prepared(self, generation: Generation) -> StagedGeneration:
        self._note_failed()
        return StagedGeneration(generation, self._settings, self._captures, self.trials, self._permits, self._failed)

    def _permits(self, entry: TableEntry) -> bool:
        """Whether the kill switch, as it is at this moment, lets a kernel run."""
        kill = read_kill_switch(self._environ)
        return not (kill.kernels or entry.domain.operator in kill.denied or kill.denies(entry))

    def _note_failed(self) -> None:
        """Remembers, by what they run, kernels that were disabled for what they did: another manifest is no pardon."""
        for state in self._loaded.states.values():
            if state.failed_because:
                self._failed.setdefault(
                    state.entry.object.sha256, f"has failed in this process before: {state.failed_because}"
                )

    def _take_back(self, generation: Generation, replaced: bool) -> None:
        """Stops kernels that serve, or are about to, and that a generation does not hold: all of them, or those of
        tables for which it has no other."""
        kept = {entry for table in generation.tables for entry in table.entries}
        covered = {table.name for table in generation.tables if table.entries}
        with self._lock:
            states = [*self._loaded.states.values(), *(self._staged.states.values() if self._staged else ())]
        for state in states:
            domain = state.entry.domain
            if state.entry not in kept and (replaced or f"{domain.operator}.{domain.dtype}" not in covered):
                state.disable(f"taken back by generation {generation.number}")

    def _add_late(self, site: Site, to: StagedGeneration) -> None:
        """A site that a generation contradicts itself about gets none of its kernels; the others keep theirs."""
        known = len(to.refusals)
        try:
            to.add(site)
        except InconsistentGenerationError as error:
            to.refusals.append(_whole(to.generation, error))
            to.views.append(View(site))
        self.refusals.extend(to.refusals[known:])

    def _read_kill_switch(self, text: tuple[str, str]) -> None:
        self._kill_text = text
        before, self.kill = self.kill, read_kill_switch(self._environ)
        if self.kill.problem not in ("", before.problem):
            self.refusals.append(Refusal(self.generation.number, "*", "*", self.kill.problem))
        with self._lock:
            self._permitted.clear()
            self._publish()

    def _publish(self) -> None:
        """Makes the current views, or such without kernels, what the hot path reads."""
        with self._lock:
            before = self.active
            self.active = tuple(self._view(view) for view in self._loaded.views)
            if self.active[: len(before)] != before:
                self.epoch += 1

    def _view(self, view: View) -> View:
        site = view.site
        if not self._enabled or self.kill.kernels or site.operator in self.kill.denied:
            key = (site.index, not self.kill.sampling)
            return self._without.setdefault(key, View(site, sampled=not self.kill.sampling))
        if not self.kill.digests:
            return view
        if view not in self._permitted:
            rows = tuple(None if row is None or self.kill.denies(row.state.entry) else row for row in view.rows)
            self._permitted[view] = View(site, rows)
        return self._permitted[view]


def _whole(generation: Generation, error: InconsistentGenerationError) -> Refusal:
    return Refusal(generation.number, error.operator, "*", str(error), whole=True)


def _added(totals: Mapping[tuple[str, str], Served], states: Iterable[EntryState]) -> dict[tuple[str, str], Served]:
    found = dict(totals)
    for state in states:
        domain = state.entry.domain
        key = (f"{domain.operator}.{domain.dtype}", state.entry.candidate)
        before = found.get(key, Served())
        found[key] = Served(before.hits + state.hits, before.mismatches + state.mismatches)
    return found


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
