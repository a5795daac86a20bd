"""The plugin for SGLang: an entry point of `sglang.srt.plugins`, which the engine loads in every process it starts.

Out of tree: hooks are registered with the engine's own registry, which wraps the methods that it names before a
scheduler is made. A process that was handed no membership (`gristmill.membership.hand_down`) is left alone, and so is
an engine of another version, with one line in its log; a process without a scheduler runs no model to hook.

Proven so far: one rank on a CPU without AMX, eager, no drafts. What is not is refused, unless `GRISTMILL_SGLANG=1` asks
for it; the status then names it (docs/decisions/0035).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.adapters import plugin
from gristmill.adapters.plugin import parameters
from gristmill.errors import EngineError
from gristmill.membership import inherited

KNOWN = ((0, 5, 23),)
"""Releases whose structure was looked at and whose engine was run. SGLang rebuilds itself within a minor release."""
PACKAGES = ("sglang",)
VARIABLE = "GRISTMILL_SGLANG"
LOGGER = logging.getLogger("sglang.gristmill")
SCHEDULER = "sglang.srt.managers.scheduler"
RUNNER = "sglang.srt.model_executor.model_runner"


def register() -> None:
    """Called by the engine, in each of its processes; may be called again. Whatever goes wrong, the engine starts."""
    plugin.load(_register, LOGGER)


def _register() -> None:
    check_version(_version())
    if SCHEDULER not in sys.modules:  # whoever runs one has loaded it; importing it takes others seconds
        return
    plugin.check_structure(f"SGLang {_version()}", _structure)
    inherited(os.environ)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in _hooks().items():
        if not any(hook is registered for _, registered, _ in HookRegistry._hooks.get(target, ())):
            HookRegistry.register(target, hook, HookType.AROUND)


def check_version(version: str) -> None:
    """Whether the adapter knows this release.

    Raises:
        EngineError: it does not.
    """
    plugin.check_release("SGLang", version, KNOWN)


def unproven(settings: Any, amx: bool) -> list[str]:
    """What of this process's configuration no test has run a real engine with, beside this adapter.

    Args:
        settings: the engine's `ServerArgs`.
        amx: whether layers of `sgl_kernel` serve.
    """
    found = {
        "layers of sgl_kernel (AMX)": amx,
        "more than one rank": max(settings.tp_size, settings.pp_size, settings.dp_size) > 1,
        "speculative decoding": settings.speculative_algorithm is not None,
        "torch.compile": bool(settings.enable_torch_compile),
        "prefill apart from decode": settings.disaggregation_mode != "null",
    }
    return [name for name, there in found.items() if there]


def check_proven(missing: list[str], environ: Mapping[str, str]) -> None:
    """Whether to serve all the same.

    Raises:
        EngineError: something is unproven, and nobody asked for it.
    """
    if missing and environ.get(VARIABLE) != "1":
        raise EngineError(
            f"SGLang with {', '.join(missing)}: gristmill is not proven there; set {VARIABLE}=1 to run it all the same"
        )


def _version() -> str:
    import sglang

    return str(sglang.__version__)


def _structure() -> dict[str, bool]:
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    norm = ["self", "x", "residual", "post_residual_addition", "quant_linear"]
    return {
        "HookRegistry.register": parameters(HookRegistry.register)[:3] == ["target", "hook", "hook_type"]
        and hasattr(HookType, "AROUND")
        and isinstance(HookRegistry._hooks, dict),
        "RMSNorm.forward_native": parameters(RMSNorm.forward_native) == norm,
        "SiluAndMul.forward_native": parameters(SiluAndMul.forward_native) == ["self", "x"],
        "RMSNorm._resolve_forward_method": parameters(RMSNorm._resolve_forward_method) == ["self"],
        "SiluAndMul._resolve_forward_method": parameters(SiluAndMul._resolve_forward_method) == ["self"],
        "ModelRunner.load_model": parameters(ModelRunner.load_model) == ["self"],
        "ModelRunner.forward": parameters(ModelRunner.forward)[:2] == ["self", "forward_batch"],
        "Scheduler.__init__": parameters(Scheduler.__init__)[:2] == ["self", "server_args"],
        "Scheduler.process_batch_result": parameters(Scheduler.process_batch_result) == ["self", "batch", "result"],
        "Scheduler.get_internal_state": parameters(Scheduler.get_internal_state) == ["self", "recv_req"],
        "Scheduler.release_host_resources": parameters(Scheduler.release_host_resources) == ["self"],
    }


def _hooks() -> dict[str, Callable[..., Any]]:
    """By the method that each is put around."""
    from gristmill.adapters import sglang_runner, sglang_scheduler

    return {
        f"{RUNNER}.ModelRunner.load_model": sglang_runner.load_model,
        f"{RUNNER}.ModelRunner.forward": sglang_runner.forward,
        f"{SCHEDULER}.Scheduler.__init__": sglang_scheduler.make,
        f"{SCHEDULER}.Scheduler.process_batch_result": sglang_scheduler.process_batch_result,
        f"{SCHEDULER}.Scheduler.get_internal_state": sglang_scheduler.get_internal_state,
        f"{SCHEDULER}.Scheduler.release_host_resources": sglang_scheduler.release_host_resources,
    }
