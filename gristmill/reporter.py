"""The reporter: what the counters of one engine process say since the last swap, as a status report.

It counts nothing that is not counted anyway, but decoded tokens, and reads all of it on the thread that reports.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from gristmill import limits, records
from gristmill.sampler import Timed
from gristmill.status_report import Refused, StatusReport, TableCounts, Work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.dispatch import Dispatcher
    from gristmill.sampler import Sampler

REPORTED_REFUSALS = 20


class Reporter:
    """One per process. `decoded` is for the engine's thread alone; all else may be called from any."""

    def __init__(self, dispatcher: Dispatcher, sampler: Sampler | None, follows: str, worker: str = "") -> None:
        """See `StatusReport` for `follows` and `worker`."""
        self._dispatcher = dispatcher
        self._sampler = sampler
        self._follows = follows
        self._worker = worker
        self._process = secrets.token_hex(8)
        self._tokens = self._decode_ns = 0
        self._lock = threading.Lock()
        self._begin()

    def decoded(self, tokens: int, duration_ns: int) -> None:
        """To be called after a decode step."""
        self._tokens += tokens
        self._decode_ns += duration_ns

    def swapped(self) -> None:
        """To be called after a swap, before the next step: from now on the new generation is reported on."""
        with self._lock:
            self._begin()

    def status(self, host: str, problem: str = "", closing: bool = False) -> StatusReport:
        """The report of this moment. What it counts was served by the generation that it names, and by no other."""
        with self._lock:
            while True:
                facts = self._dispatcher.status()
                if self._dispatcher.generation is self._generation:
                    break
                self._begin()
            refusals = self._dispatcher.refusals[-REPORTED_REFUSALS:]
            return StatusReport(
                host=host,
                worker=self._worker,
                process=self._process,
                follows=self._follows,
                channel=self._generation.channel or self._follows,
                generation=self._generation.number,
                work=self._counted(facts) - self._before,
                refusals=tuple(
                    Refused(one.generation, one.operator, one.candidate, limits.shortened(one.reason))
                    for one in refusals
                ),
                problem=limits.shortened(problem),
                kill=facts["kill"],
                closing=closing,
                swapped_utc=self._swapped_utc,
                created_utc=records.utc_now(),
            )

    def _begin(self) -> None:
        """Counts from now on. The counters of kernels start by themselves at a swap."""
        self._generation = self._dispatcher.generation
        self._swapped_utc = records.utc_now()
        self._before = self._counted({"entries": (), "fallbacks": self._dispatcher.fallbacks()})

    def _counted(self, facts: Mapping[str, Any]) -> Work:
        tables: dict[str, TableCounts] = {}
        for entry in facts["entries"]:
            name = f"{entry['operator']}.{entry['dtype']}"
            counted = {key: entry[key] for key in ("hits", "failures", "shadow_checks", "mismatches")}
            tables[name] = tables.get(name, TableCounts()) + TableCounts(**counted)
        timed = self._sampler.totals() if self._sampler is not None else {}
        for name in {*facts["fallbacks"], *timed}:
            of = timed.get(name, Timed())
            more = TableCounts(
                fallbacks=facts["fallbacks"].get(name, 0),
                calls=of.calls,
                timed_calls=of.timed_calls,
                timed_ns=of.timed_ns,
            )
            tables[name] = tables.get(name, TableCounts()) + more
        return Work(tables, self._tokens, self._decode_ns)
