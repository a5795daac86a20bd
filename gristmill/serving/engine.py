"""The engine process: model, dispatcher, sampler, spool and host put together, and the loop that obeys commands."""

from __future__ import annotations

import importlib.metadata
import os
import queue
import threading
import time
from dataclasses import replace
from typing import Any

import torch

from gristmill import __version__, records, value_capture
from gristmill.adapters.transformers import attach
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError, ServingError
from gristmill.hardware import local_cpu
from gristmill.host import HostEvent
from gristmill.member import Member
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.serving.model import build_model
from gristmill.serving.paired import PairedSettings, run_paired
from gristmill.serving.protocol import Command, LineWriter, PairedCommand, PlainCommand, ReplayCommand, answer
from gristmill.serving.replay import ReplayHooks, serve
from gristmill.serving.settings import EngineSettings
from gristmill.spool import Identity, Spool
from gristmill.traces import Request

IDLE_S = 0.05
"""How often an idle engine passes a step boundary."""


class Engine:
    """A serving process without its streams. `run` returns when told to quit or when `closed` is set."""

    def __init__(self, settings: EngineSettings, writer: LineWriter, closed: threading.Event) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._settings = settings
        self._writer = writer
        self._hardware = local_cpu().key
        self.closed = closed
        self.commands: queue.Queue[Command] = queue.Queue()
        self.dispatcher = Dispatcher(
            settings.channel, self._hardware, DispatchSettings(shadow_every=settings.shadow_every)
        )
        values = value_capture.from_environment(os.environ)
        sampler = Sampler(settings.sample_period, values=values) if settings.sampling else None
        self._model = build_model(settings.shape, settings.dtype, settings.seed)
        self._attachment = attach(self._model, self.dispatcher, sampler)
        self._spool = self._open_spool(sampler) if settings.store and sampler else None
        self._member = self._joined() if settings.root_file else None

    def run(self) -> None:
        """Obeys commands until closed; requests being served then are dropped."""
        if self._spool:
            self._spool.start(self._settings.spool_s)
        if self._member:
            self._member.start()
        self._writer.write("ready", **self.status())
        try:
            while not self.closed.is_set():
                self._boundary()
                try:
                    command = self.commands.get(timeout=IDLE_S)
                except queue.Empty:
                    continue
                answer(self._writer, command, self._result)
        finally:
            self._shut_down()

    def status(self) -> dict[str, Any]:
        """Counters and generation. Safe from any thread."""
        return {
            "fleet": self._settings.fleet,
            "model": self._settings.model,
            "channel": self._settings.channel,
            "hardware": self._hardware,
            "dtype": self._settings.dtype,
            "shape": self._settings.shape,
            **self.dispatcher.status(),
        }

    def _result(self, command: Command) -> Any:
        hooks = ReplayHooks(
            boundary=self._boundary,
            stop=self.closed.is_set,
            decoded=self._member.decoded if self._member else lambda tokens, duration_ns: None,
            progress=lambda progress: self._writer.write("progress", id=command.id, **progress),
        )
        if isinstance(command, ReplayCommand):
            return self._replay(command, hooks)
        if isinstance(command, PairedCommand):
            settings = PairedSettings(
                command.concurrency, command.pairs, command.block_steps, command.seed, command.time_operators
            )
            results = run_paired(self._model, self._attachment, command.requests, settings, hooks)
            return {"generation": self.dispatcher.generation.number, "runs": results}
        return self._plain(command)

    def _plain(self, command: PlainCommand) -> Any:
        if command.command == "flush":
            if self._spool is None:
                raise ServingError("flush: this process does not spool; start it with a store and sampling on")
            return self._spool.flush()
        if command.command == "quit":
            self.closed.set()
        return self.status()

    def _replay(self, command: ReplayCommand, hooks: ReplayHooks) -> Any:
        start_ns = time.time_ns()
        spool = self._spool
        if spool is not None:
            hooks.finished = lambda request: self._note(spool, request, start_ns)
        before = self.dispatcher.hits()
        result = serve(self._model, self._attachment, command.requests, command.concurrency, command.seed, hooks)
        after = self.dispatcher.hits()
        digest = records.digest(result.tokens)
        if not command.detail:
            result = replace(result, steps=(), tokens=(), probabilities=())
        return {
            **records.encode(result),
            "tokens_digest": digest,
            "generation": self.dispatcher.generation.number,
            "hits": {name: count - before.get(name, 0) for name, count in after.items()},
        }

    def _note(self, spool: Spool, request: Request, start_ns: int) -> None:
        if not self.dispatcher.kill.sampling:
            arrival_ns = start_ns + round(request.arrival_s * 1e9)
            spool.add_request(request.prompt_tokens, request.generated_tokens, arrival_ns)

    def _boundary(self) -> None:
        if self._member:
            self._member.boundary()
            return
        if self._attachment.sampler is not None:
            self._attachment.sampler.boundary()
        self.dispatcher.step_boundary()

    def _open_spool(self, sampler: Sampler) -> Spool:
        settings = self._settings
        identity = Identity(settings.fleet, settings.model, self._hardware, _versions())
        return Spool(settings.object_store(os.environ), identity, sampler, settings.waiting_dir())

    def _joined(self) -> Member:
        def tell(event: HostEvent) -> None:
            self._writer.write(event.kind, generation=event.generation, **event.detail)

        return Member(self._settings.membership(), self.dispatcher, self._attachment, self._settings.worker, tell)

    def _shut_down(self) -> None:
        if self._member:
            self._member.stop()
        if self._spool:
            try:
                self._spool.stop()
            except (GristmillError, OSError) as error:
                self._writer.write("error", id="", message=str(error))
        self._attachment.detach()


def _versions() -> dict[str, str]:
    return {
        "gristmill": __version__,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }
