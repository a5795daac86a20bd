"""What vLLM's scheduler knows: how full its batches are, how long requests were, what caches and drafts did for them.

The scheduler lives in the engine core's process, which runs no operator unless its worker is in it; so requests have a
spool of their own there. Numbers only: no prompt, no token.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill import records
from gristmill.adapters.engine_link import Link, opened_spool
from gristmill.adapters.scheduler_statistics import SchedulerStatistics
from gristmill.adapters.vllm import LINKED, LOGGER, PACKAGES
from gristmill.hardware import hardware_of
from gristmill.kill_switch import read_kill_switch
from gristmill.membership import inherited
from gristmill.request_log import FinishedRequest
from gristmill.sampler import Sampler

if TYPE_CHECKING:
    from gristmill.spool import Spool


@dataclass
class _Flight:
    cached_tokens: int = 0
    drafts: int = 0
    accepted: list[int] = field(default_factory=list)

    def drafted(self, accepted: int) -> None:
        self.drafts += 1
        self.accepted += [0] * (accepted - len(self.accepted))
        for position in range(accepted):
            self.accepted[position] += 1


def link_schedulers(scheduler_class: Any) -> None:
    """Lets every scheduler that the engine makes from now on be read. `scheduler_class` is vLLM's `Scheduler`."""
    own = scheduler_class.__init__
    if hasattr(scheduler_class, LINKED):
        return

    @functools.wraps(own)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        own(self, *arguments, **keywords)
        SchedulerLink(self)

    scheduler_class.__init__ = init
    setattr(scheduler_class, LINKED, True)


class SchedulerLink(Link):
    """Reads one scheduler as it works. What goes wrong in here ends the reading, never the engine."""

    def __init__(self, scheduler: Any, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(LOGGER)
        self.statistics = SchedulerStatistics()
        self._scheduler = scheduler
        self._flights: dict[str, _Flight] = {}
        self._reading = False
        self._spool: Spool | None = None
        self._update, self._free = scheduler.update_from_output, scheduler._free_request
        self._drafted, self._close = scheduler.make_spec_decoding_stats, scheduler.shutdown
        scheduler.update_from_output, scheduler._free_request = self._update_from_output, self._free_request
        scheduler.make_spec_decoding_stats, scheduler.shutdown = self._make_spec_decoding_stats, self._shutdown
        scheduler.gristmill = self
        _offer_utility()
        self.guarded(self._begin, environ)

    def status(self) -> dict[str, Any]:
        """JSON-ready."""
        facts: dict[str, Any] = records.encode(self.statistics)
        return facts

    def _begin(self, environ: Mapping[str, str]) -> None:
        self._reading = not read_kill_switch(environ).sampling
        membership = inherited(environ)
        membership.check(environ)
        hardware = hardware_of(self._scheduler.vllm_config.device_config.device_type).key
        sampler = Sampler(membership.sample_period)
        self._spool = opened_spool(membership, hardware, sampler, PACKAGES, LOGGER, environ)

    def _update_from_output(self, scheduler_output: Any, *arguments: Any, **keywords: Any) -> Any:
        if self._reading:
            self.guarded(self._read_step, scheduler_output)
        return self._update(scheduler_output, *arguments, **keywords)

    def _read_step(self, scheduler_output: Any) -> None:
        for new in scheduler_output.scheduled_new_reqs:
            self._flights[new.req_id] = _Flight(new.num_computed_tokens)
        running, waiting = self._scheduler.get_request_counts()
        scheduled, usage = scheduler_output.total_num_scheduled_tokens, self._scheduler.get_kv_cache_usage()
        self.statistics.add_step(scheduled, running, waiting, usage)

    def _make_spec_decoding_stats(self, *arguments: Any, **keywords: Any) -> Any:
        if self._reading and keywords.get("num_draft_tokens"):
            self.guarded(self._read_draft, keywords)
        return self._drafted(*arguments, **keywords)

    def _read_draft(self, keywords: Mapping[str, Any]) -> None:
        self._flights.setdefault(keywords["request_id"], _Flight()).drafted(keywords["num_accepted_tokens"])

    def _free_request(self, request: Any, *arguments: Any, **keywords: Any) -> Any:
        if self._reading:
            self.guarded(self._read_request, request)
        return self._free(request, *arguments, **keywords)

    def _read_request(self, request: Any) -> None:
        flight = self._flights.pop(request.request_id, _Flight())
        finished = FinishedRequest(
            request.num_prompt_tokens,
            request.num_output_tokens,
            round(request.arrival_time * 1e9),
            flight.cached_tokens,
            flight.drafts,
            tuple(flight.accepted),
        )
        self.statistics.add_request(finished)
        if self._spool and finished.generated_tokens:
            self._spool.add_request(**vars(finished))

    def _shutdown(self) -> None:
        if self._spool:
            self.guarded(self._spool.stop)
        self._close()

    def give_up(self, reason: str) -> None:
        self.logger.warning("%s; the scheduler is read no more", reason)
        self._reading, self._spool = False, None


def _offer_utility() -> None:
    """Lets the engine's front ask for these numbers, where this process is an engine core's."""
    core = sys.modules.get("vllm.v1.engine.core")
    if core is not None:
        core.EngineCore.gristmill_scheduler = lambda self: self.scheduler.gristmill.status()
