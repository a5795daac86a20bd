"""The plugin for vLLM: an entry point of `vllm.general_plugins`, which the engine loads in every process it starts.

Out of tree: layers come from `CustomOp.register_oot`, and each worker is linked to its channel when it is made. A
process that was handed no membership (`gristmill.membership.hand_down`) is left alone, and so is an engine of another
version, with one line in its log.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from typing import Any

from gristmill import __version__
from gristmill.errors import EngineError, GristmillError
from gristmill.membership import VARIABLE, inherited

KNOWN = ((0, 32),)
"""Releases, major and minor, whose structure was looked at and whose engine was run."""
LOGGER = logging.getLogger("vllm.gristmill")
"""Below the engine's logger, so that the engine's own handlers show it."""
LAYERS = ("RMSNorm", "SiluAndMul")
LINKED = "_gristmill_linked"
"""Marks a class of the engine's whose objects are linked as they are made."""


def register() -> None:
    """Called by the engine, in each of its processes; may be called again. Whatever goes wrong, the engine starts."""
    if not os.environ.get(VARIABLE):
        return
    try:
        _register()
    except GristmillError as error:
        LOGGER.warning("%s; it serves with its own kernels", error)
    except Exception:
        LOGGER.exception("a bug of gristmill's; the engine serves with its own kernels")


def _register() -> None:
    check_version(_version())
    _check_structure()
    membership = inherited(os.environ)
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from gristmill.adapters import vllm_scheduler, vllm_tuned, vllm_worker

    vllm_tuned.point(os.environ, membership.cache_dir)
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
    found = re.match(r"(\d+)\.(\d+)\.", version)
    if found is None or (int(found[1]), int(found[2])) not in KNOWN:
        known = ", ".join(f"{major}.{minor}" for major, minor in KNOWN)
        raise EngineError(f"vLLM {version[:40]}: gristmill {__version__} knows {known}; install one of these")


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _check_structure() -> None:
    """Looks at all that is relied on, so that a build that differs is refused before anything is changed.

    Raises:
        EngineError: it differs.
    """
    try:
        from vllm.model_executor.custom_op import CustomOp, op_registry_oot
        from vllm.model_executor.layers.activation import SiluAndMul
        from vllm.model_executor.layers.layernorm import RMSNorm
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        found = {
            "RMSNorm.forward_native": _parameters(RMSNorm.forward_native) == ["self", "x", "residual"],
            "SiluAndMul.forward_native": _parameters(SiluAndMul.forward_native) == ["x"],
            "CustomOp.register_oot": "name" in _parameters(CustomOp.register_oot) and isinstance(op_registry_oot, dict),
            "WorkerWrapperBase.init_device": _parameters(WorkerWrapperBase.init_device) == ["self"],
            "Scheduler.update_from_output": _parameters(Scheduler.update_from_output)[:2]
            == ["self", "scheduler_output"],
            "Scheduler._free_request": _parameters(Scheduler._free_request)[:2] == ["self", "request"],
        }
    except (ImportError, AttributeError) as error:
        raise EngineError(f"vLLM {_version()}: is built differently from what the adapter knows ({error})") from None
    differ = [name for name, same in found.items() if not same]
    if differ:
        raise EngineError(f"vLLM {_version()}: {', '.join(differ)} differ from what the adapter knows")


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


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
