"""The host: polls a channel, stages what it finds, and tells what happened. Knows no engine.

The engine calls `boundary` between its steps; everything slow happens on the host's own thread.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill import forked_child
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.generation import Generation
from gristmill.kill_switch import KillSwitch
from gristmill.poll_schedule import PollSchedule

STOP_S = 5.0


class ChannelReader(Protocol):
    """What a host needs of a channel: the store's (`pull.Puller`), or a sidecar's (`cache_reader.CacheReader`)."""

    def poll(self) -> Generation | None:
        """A newer verified generation, or None. The first takes seconds at most where the cache holds one."""
        ...

    def last_good(self) -> Generation | None:
        """The newest verified generation in the local cache, without network."""
        ...


@dataclass(frozen=True)
class HostEvent:
    """Something that the fleet's operators want to know."""

    kind: str
    """`staged`, `swap`, `rollback`, `refusal`, `poll_failed` or `warning`."""
    generation: int
    detail: dict[str, Any]


class Host:
    """One engine process's link to its channel.

    `emit` is called from both the host's thread and the engine's. A channel that fails is reported once per distinct
    reason, and the last good generation goes on serving. `report` is called after a swap and every `report_s`, on the
    host's thread, whether the channel could be read or not; it may raise what a store raises. `warnings` gives
    what else is to be told, each once.

    A forked child has no part in it: nothing is polled or reported there, and the engine's own kernels serve, for
    nobody would tell it what was taken back. It can make a host of its own.
    """

    def __init__(
        self,
        channel: ChannelReader,
        dispatcher: Dispatcher,
        emit: Callable[[HostEvent], None],
        interval_s: float = 15.0,
        report: Callable[[], None] | None = None,
        report_s: float = 15.0,
        warnings: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._channel = channel
        self._dispatcher = dispatcher
        self._emit = emit
        self._schedule = PollSchedule(interval_s)
        self._report = report
        self._report_s = report_s
        self._warnings = warnings
        self._reported_at_s = -math.inf
        self._reported_generation: Generation | None = None
        self._problems: dict[str, str] = {}
        """What failed last, polling or reporting, to the reason; empty once it succeeds again."""
        self._taken: Generation | None = dispatcher.generation
        """What the dispatcher was given last; None while that could not be staged."""
        self._pending: Generation | None = None
        """What the channel handed out and could not be staged; tried again at each poll."""
        self._served: list[frozenset[str]] = [_candidates(dispatcher.generation)]
        self._begun = False
        """Whether there was a generation, or something was looked for in the cache."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.inherited = False
        """Whether this is a forked child's copy of its parent's."""
        self._warned = False
        self._kill: KillSwitch | None = None
        """As it was when it was looked at last, for what is to be told of it."""

    def start(self) -> None:
        """Polls at once and then as `PollSchedule` says, on a daemon thread.

        What the cache holds is staged only if the first poll brings nothing: a rollback that is out already is obeyed
        before the kernel that it takes back has run once more.
        """

        def loop() -> None:
            self._survive(self.poll_once)
            pause_s = self._schedule.first_s()
            while not self._stopped.wait(pause_s):
                self._survive(self.poll_once)
                pause_s = self._schedule.next_s(failed=bool(self.problem))

        if self.inherited:
            return
        forked_child.tell(self)
        self._thread = threading.Thread(target=loop, name="gristmill-host", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """In a forked child; see the class."""
        self.inherited, self._thread = True, None
        self._dispatcher.forked()

    def stop(self) -> None:
        """Ends the thread; what is active stays active. A poll that a slow store holds is not waited for."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def poll_once(self) -> None:
        """One look at the channel; a generation that passes its smoke tests is staged."""
        if self.inherited or self._dispatcher.kill.sampling:
            return
        if self._dispatcher.lifted:
            self._pending, self._taken = self._pending or self._taken, None
        try:
            self._guard("poll", lambda: self._take(self._channel.poll))
        finally:
            if not self._begun:
                self._begun = True
                self._guard("start", lambda: self._take(self._channel.last_good))
        self._guard("report", self._report_if_due)
        for text in self._warnings():
            self._emit(HostEvent("warning", self._dispatcher.generation.number, {"reason": text}))

    @property
    def problem(self) -> str:
        """Why the last poll took nothing; empty if it could be done."""
        return self._problems.get("poll", "")

    def _report_if_due(self) -> None:
        generation, now_s = self._dispatcher.generation, time.monotonic()
        due = generation is not self._reported_generation or now_s - self._reported_at_s >= self._report_s
        if self._report is not None and due:
            self._report()
            self._reported_generation, self._reported_at_s = generation, now_s

    def boundary(self) -> HostEvent | None:
        """To be called by the engine between steps; swaps in what is staged."""
        if self.inherited:
            return self._told_inherited()
        swap = self._dispatcher.step_boundary()
        if self._dispatcher.kill is not self._kill:
            self._tell_kill_switch()
        if swap is None:
            return None
        now = _candidates(self._dispatcher.generation)
        kind = "rollback" if now != self._served[-1] and now in self._served else "swap"
        self._served.append(now)
        event = HostEvent(kind, swap.generation, {"previous": swap.previous, "entries": swap.entries})
        self._emit(event)
        return event

    def _tell_kill_switch(self) -> None:
        """Says once what of it was not understood, so that no kernels run."""
        told, self._kill = self._kill.problem if self._kill else "", self._dispatcher.kill
        if self._kill.problem not in ("", told):
            detail = {"reason": self._kill.problem}
            self._emit(HostEvent("warning", self._dispatcher.generation.number, detail))

    def _told_inherited(self) -> HostEvent | None:
        """Says once that a child serves without kernels."""
        if self._warned:
            return None
        self._warned = True
        reason = "this process was forked off one that follows a channel, and follows none; join it anew for kernels"
        event = HostEvent("warning", self._dispatcher.generation.number, {"reason": reason})
        self._emit(event)
        return None

    def _take(self, read: Callable[[], Generation | None]) -> None:
        """Reads the channel and stages what is new, or what could not be staged before: it is not handed out again."""
        try:
            generation = read()
            if generation is not None:
                self._pending, self._begun = generation, True
        finally:
            if self._pending is not None:
                self._stage(self._pending)
                self._pending = None

    def _stage(self, generation: Generation) -> None:
        if generation == self._taken:
            return
        self._taken = None
        refusals = self._dispatcher.stage(generation)
        self._taken = generation
        for refusal in refusals:
            detail = {"operator": refusal.operator, "candidate": refusal.candidate, "reason": refusal.reason}
            self._emit(HostEvent("refusal", refusal.generation, detail))
        if not any(refusal.whole for refusal in refusals):
            self._emit(HostEvent("staged", generation.number, {"tables": [table.name for table in generation.tables]}))

    def _survive(self, work: Callable[[], None]) -> None:
        """A bug must not end the polling: this host would serve an old generation for ever, and silently."""
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self._tell_problem("poll", f"{type(error).__name__}: {error} (a bug; its traceback is on standard error)")

    def _guard(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
            self._problems[what] = ""
        except (GristmillError, OSError) as error:
            self._tell_problem(what, str(error))

    def _tell_problem(self, what: str, problem: str) -> None:
        if problem != self._problems.get(what):
            self._problems[what] = problem
            self._emit(HostEvent("poll_failed", self._dispatcher.generation.number, {"reason": problem}))


def _candidates(generation: Generation) -> frozenset[str]:
    """What identifies a generation's content whatever its number."""
    return frozenset(entry.candidate for table in generation.tables for entry in table.entries)
