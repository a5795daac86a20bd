"""What SGLang asks for as it is imported and a CPU has not: in every process with this folder on its path.

torchvision's build on the package index can't load its operators beside a CPU build of torch, and then fails to
describe two of them: here they are declared, and stay without a body. A rotary embedding of SGLang's looks for one of
vLLM's kernels on a host with no accelerator; it never calls it there. Nothing else of the engine is replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

KERNELS = {"vllm": None, "vllm._custom_ops": "rotary_embedding"}
DECLARED = ("nms", "qnms")
libraries: list[Any] = []


class Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        name = KERNELS[module.__name__]

        def missing(*_: Any) -> None:
            raise NotImplementedError(f"{name}: a placeholder was called, so the engine is not what was looked at")

        if name:
            setattr(module, name, missing)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision" and not libraries:
            import torch

            libraries.append(torch.library.Library("torchvision", "DEF"))
            for name in DECLARED:
                libraries[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        if fullname not in KERNELS:
            return None
        return importlib.machinery.ModuleSpec(fullname, Loader(), is_package=KERNELS[fullname] is None)


sys.meta_path.insert(0, Finder())
