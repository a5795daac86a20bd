"""A member: one process of a host, which follows its channel, serves what it finds and reports under its own name."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gristmill import value_capture
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.hardware import device_type, hardware_of, local_cpu
from gristmill.hook import Instruments
from gristmill.host import Host, HostEvent
from gristmill.membership import Membership, checked_worker, inherited
from gristmill.reporter import Reporter
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.status_report import report
from gristmill.trials import Trials

if TYPE_CHECKING:
    pass


class Member:
    """Made once an adapter has attached a model. `boundary` and `decoded` are for the engine's thread."""

    def __init__(
        self,
        membership: Membership,
        dispatcher: Dispatcher,
        instruments: Instruments,
        worker: str = "",
        emit: Callable[[HostEvent], None] = lambda event: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Nothing is contacted yet.

        Args:
            worker: which process of this host it is, by a name that survives restarts; empty if there is one.
            emit: told of swaps, refusals and polls that failed, on the engine's thread and another.

        Raises:
            GristmillError: as `Membership.check`, or a worker's name that can't be one.
        """
        self.dispatcher = dispatcher
        dispatcher.trials = Trials(Path(membership.cache_dir) / "trials", checked_worker(worker))
        self._instruments = instruments
        hardware = dispatcher.hardware or local_cpu().key
        self._channel = membership.follower(hardware, self._table_names, environ)
        self._reports = membership.report_store(environ)
        self._reporter = Reporter(self.dispatcher, instruments.sampler, membership.channel, checked_worker(worker))
        self._emit = emit
        self._host = Host(
            self._channel,
            self.dispatcher,
            emit,
            membership.poll_s,
            self._tell_registry,
            warnings=lambda: [*dispatcher.trials.take_warnings(), *self._channel.cache.take_warnings()],
        )
        self.decoded = self._reporter.decoded
        """`decoded(tokens, duration_ns)`: to be called after each decode step, for the fleet's tokens/s."""

    def start(self) -> None:
        """Begins to follow, on a thread."""
        self._host.start()

    def boundary(self) -> HostEvent | None:
        """To be called between steps: the only moment at which kernels change."""
        sampler = self._instruments.sampler
        if sampler is not None:
            sampler.boundary()
        event = self._host.boundary()
        if event is not None:
            self._reporter.swapped()
        return event

    def stop(self) -> None:
        """Follows no more, and says goodbye, so that the silence after it is not taken for a crash."""
        self._host.stop()
        if self._host.inherited:
            return
        try:
            self._tell_registry(closing=True)
        except (GristmillError, OSError) as error:
            self._emit(HostEvent("poll_failed", self.dispatcher.generation.number, {"reason": str(error)}))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _table_names(self) -> set[str]:
        """Of the tables that this model can use."""
        return {f"{site.operator}.{site.dtype}" for site in self.dispatcher.sites}

    def _tell_registry(self, closing: bool = False) -> None:
        status = self._reporter.status(self._channel.cache.host_id(), self._host.problem, closing)
        report(self._reports, self._channel.channel, status)


def join(
    model: Any,
    membership: Membership | None = None,
    worker: str | None = None,
    emit: Callable[[HostEvent], None] = lambda event: None,
    environ: Mapping[str, str] = os.environ,
) -> Member:
    """Attaches a Hugging Face Llama model and makes its process a member; enter it, or `start` it.

    Args:
        membership: None takes what was handed down to this process.
        worker: see `Member`; None takes the name that `multiprocessing` gave this process. Engines should give a
            rank: it survives restarts.

    Raises:
        GristmillError: nothing was handed down, it does not hold, or the model is not one that the adapter knows.
    """
    from gristmill.adapters.transformers import attach

    membership = membership or inherited(environ)
    membership.check(environ)
    if worker is None:
        child = multiprocessing.parent_process() is not None
        worker = multiprocessing.current_process().name.replace(":", ".") if child else ""
    settings = DispatchSettings(shadow_every=membership.shadow_every)
    hardware = hardware_of(device_type(model)).key
    dispatcher = Dispatcher(membership.channel, hardware, settings, environ)
    values = value_capture.from_environment(environ)
    attachment = attach(model, dispatcher, Sampler(membership.sample_period, values=values))
    return Member(membership, dispatcher, attachment, worker, emit, environ)
