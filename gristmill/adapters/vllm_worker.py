"""A vLLM worker as a member: attached once its model is loaded, swapped between its steps, sampled and reported on."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from gristmill.adapters import vllm_operators
from gristmill.adapters.engine_link import MemberLink
from gristmill.adapters.layer_hooks import Attachment
from gristmill.adapters.vllm import LINKED, LOGGER, PACKAGES


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


class WorkerLink(MemberLink):
    """Stands between the executor and one worker; methods that the executor calls on it pass through here."""

    def __init__(self, worker: Any, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(LOGGER, self._attached, PACKAGES, environ)
        self._worker = worker
        self._load, self._execute, self._shut_down = worker.load_model, worker.execute_model, worker.shutdown
        worker.load_model, worker.execute_model = self._load_model, self._execute_model
        worker.shutdown = self._shutdown
        worker.gristmill_status, worker.gristmill_flush = self.status, self.flush

    def status(self) -> dict[str, Any]:
        """`LLM.collective_rpc("gristmill_status")` asks every worker."""
        return {"rank": self._worker.rank, **super().status()}

    def _load_model(self, *arguments: Any, **keywords: Any) -> Any:
        result = self._load(*arguments, **keywords)
        self.guarded(self._join)
        return result

    def _execute_model(self, scheduler_output: Any) -> Any:
        return self.step(
            lambda: self._execute(scheduler_output), lambda: decoded_tokens(scheduler_output.num_scheduled_tokens)
        )

    def _shutdown(self) -> None:
        self.guarded(self.leave)
        self._shut_down()

    def _join(self) -> None:
        worker = f"rank{self._worker.rank}" if self._worker.parallel_config.world_size > 1 else ""
        self.join(self._worker.get_model(), worker)

    def _attached(self, *arguments: Any) -> Attachment:
        with _engine_configuration(self._worker.vllm_config):
            return vllm_operators.attach(*arguments)


def decoded_tokens(scheduled: Mapping[str, int]) -> int:
    """Tokens of a step that only decodes, one per request; 0 where a prompt is read or drafts are verified."""
    return len(scheduled) if all(count == 1 for count in scheduled.values()) else 0


def _engine_configuration(config: Any) -> Any:
    """Within it a layer can be asked whether the engine's settings leave it to its compiler."""
    from vllm.config import set_current_vllm_config

    return set_current_vllm_config(config)
