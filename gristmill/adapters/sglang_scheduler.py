"""SGLang's scheduler: its batches and requests added up and spooled, and our status among what it tells of itself.

It lives in the process of the runner whose batches it makes, so its requests go to that runner's spool. The functions
here are put around methods of `Scheduler`'s: the first argument is the method as it was.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from gristmill import records
from gristmill.adapters.engine_link import Link
from gristmill.adapters.scheduler_statistics import SchedulerStatistics
from gristmill.adapters.sglang import LOGGER
from gristmill.adapters.sglang_runner import LINK, RunnerLink
from gristmill.request_log import FinishedRequest


def make(own: Callable[..., None], scheduler: Any, *arguments: Any, **keywords: Any) -> None:
    """Links a scheduler once it has all its parts, its runner among them."""
    own(scheduler, *arguments, **keywords)
    setattr(scheduler, LINK, SchedulerLink(scheduler))


def process_batch_result(own: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
    link: SchedulerLink | None = getattr(scheduler, LINK, None)
    return own(scheduler, batch, result) if link is None else link.batch(lambda: own(scheduler, batch, result), batch)


def get_internal_state(own: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
    """`Engine.get_server_info()["internal_states"][n]["gristmill"]`, and `/server_info` of the HTTP front."""
    answer = own(scheduler, recv_req)
    link: SchedulerLink | None = getattr(scheduler, LINK, None)
    if link is not None:
        link.guarded(lambda: answer.internal_state.update(gristmill=link.status()))
    return answer


def release_host_resources(own: Callable[..., Any], scheduler: Any, *arguments: Any, **keywords: Any) -> Any:
    """The engine's last act when it is shut down gracefully. A spool survives any other end by itself."""
    link: SchedulerLink | None = getattr(scheduler, LINK, None)
    if link is not None and link.runner is not None:
        link.runner.guarded(link.runner.leave)
    return own(scheduler, *arguments, **keywords)


class SchedulerLink(Link):
    """Reads one scheduler as it works. What goes wrong in here ends the reading, never the engine."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(LOGGER)
        self.statistics = SchedulerStatistics()
        self.runner: RunnerLink | None = None
        self._scheduler = scheduler
        self._problem = ""
        self._tells = False
        self.guarded(self._begin)

    def status(self) -> dict[str, Any]:
        """JSON-ready: the runner's, with the scheduler's beside it."""
        facts: dict[str, Any] = {**records.encode(self.statistics), "problem": self._problem}
        return {**(self.runner.status() if self.runner else {}), "scheduler": facts}

    def batch(self, run: Callable[[], Any], batch: Any) -> Any:
        """Runs the engine's own work on a batch's results; what is finished after and was not before is noted.

        A request that is finished may come once more, in a batch that was started before its end was known.
        """
        if self._problem or self._killed():
            return run()
        unfinished: list[Any] = []
        self.guarded(lambda: unfinished.extend(request for request in batch.reqs if not request.finished()))
        self.guarded(self._read_step, batch)
        result = run()
        self.guarded(self._read_requests, unfinished)
        return result

    def give_up(self, reason: str) -> None:
        self.logger.warning("%s; the scheduler is read no more", reason)
        self._problem = reason

    def _begin(self) -> None:
        scheduler = self._scheduler
        self.runner = getattr(scheduler.tp_worker.model_runner, LINK, None)
        self._tells = speaks_for_its_requests()
        if self.runner is not None:
            scheduler.gristmill_flush = self.runner.flush  # for `Engine.collective_rpc`

    def _killed(self) -> bool:
        attachment = self.runner.attachment if self.runner else None
        return attachment is None or attachment.dispatcher.kill.sampling

    def _read_step(self, batch: Any) -> None:
        scheduler, requests = self._scheduler, len(batch.reqs)
        mode = batch.forward_mode
        tokens = batch.extend_num_tokens if mode.is_extend() else requests if mode.is_decode() else 0
        usage = scheduler.pool_stats_observer.get_pool_stats().get_kv_token_stats()[1]
        self.statistics.add_step(tokens or 0, requests, len(scheduler.waiting_queue), usage)

    def _read_requests(self, requests: Sequence[Any]) -> None:
        spool = self.runner.spool if self.runner else None
        for request in requests:
            if not request.finished():
                continue
            finished = finished_request(request, time.time_ns(), time.perf_counter())
            self.statistics.add_request(finished)
            if spool and self._tells and finished.generated_tokens:
                spool.add_request(**vars(finished))


def finished_request(request: Any, now_ns: int, now_s: float) -> FinishedRequest:
    """What is spooled of the engine's `Req`. `now_s` is on the clock of its own times, which says no date."""
    waited_ns = round((now_s - request.time_stats.scheduler_recv_time) * 1e9)
    return FinishedRequest(
        len(request.origin_input_ids),
        len(request.output_ids),
        now_ns - waited_ns,
        request.cached_tokens,
        request.spec_verify_ct,
        accepted_by_position(request.spec_correct_drafts_histogram),
    )


def accepted_by_position(histogram: Sequence[int]) -> tuple[int, ...]:
    """From how many drafts had so many tokens accepted: how many had their first, their second and so on."""
    return tuple(itertools.accumulate(reversed(histogram[1:])))[::-1]


def speaks_for_its_requests() -> bool:
    """Ranks that share their requests each schedule them; one of them spools."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0 and parallel.pp_rank == 0)
