"""SGLang's model runner as a member: attached once its model is loaded, swapped between its steps, reported on.

The functions here are put around methods of `ModelRunner`'s: the first argument is the method as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.adapters import sglang, sglang_operators
from gristmill.adapters.engine_link import MemberLink

LINK = "gristmill"
"""The attribute by which the engine's own objects know their link."""


def load_model(own: Callable[..., Any], runner: Any, *arguments: Any, **keywords: Any) -> Any:
    """Links a runner. One that drafts for another is left alone: it follows no channel of its own."""
    result = own(runner, *arguments, **keywords)
    if not runner.is_draft_worker:
        setattr(runner, LINK, RunnerLink(runner))
    return result


def forward(own: Callable[..., Any], runner: Any, forward_batch: Any, *arguments: Any, **keywords: Any) -> Any:
    """One step."""
    link: RunnerLink | None = getattr(runner, LINK, None)
    if link is None:
        return own(runner, forward_batch, *arguments, **keywords)
    return link.step(lambda: own(runner, forward_batch, *arguments, **keywords), lambda: decoded_tokens(forward_batch))


class RunnerLink(MemberLink):
    """Of one runner, which has its model."""

    def __init__(self, runner: Any, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(sglang.LOGGER, sglang_operators.attach, sglang.PACKAGES, environ)
        self.unproven: list[str] = []
        self.guarded(self._begin, runner)

    def status(self) -> dict[str, Any]:
        return {"unproven": list(self.unproven), **super().status()}

    def _begin(self, runner: Any) -> None:
        self.unproven = sglang.unproven(runner.server_args, _amx())
        sglang.check_proven(self.unproven, self.environ)
        self.join(runner.model, _worker_name(runner.server_args))


def decoded_tokens(forward_batch: Any) -> int:
    """Tokens of a step that only decodes, one per request; 0 where a prompt is read or drafts are verified."""
    return int(forward_batch.batch_size) if forward_batch.forward_mode.is_decode() else 0


def _worker_name(settings: Any) -> str:
    """Which of several processes of one engine this is; empty if there is one."""
    sizes = {"dp": settings.dp_size, "pp": settings.pp_size, "tp": settings.tp_size}
    several = [name for name, size in sizes.items() if size > 1]
    if not several:
        return ""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return "-".join(f"{name}{getattr(parallel, f'{name}_rank')}" for name in several)


def _amx() -> bool:
    """Whether the engine's layers are those of `sgl_kernel`."""
    from sglang.srt.utils import cpu_has_amx_support, is_cpu

    return bool(is_cpu() and cpu_has_amx_support())
