"""The process in which baselines run: trusted code, the runner's protocol, and no candidate ever.

A baseline is called as the engine calls it: it takes tensors and allocates its outputs. It is run as a script.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness import runner
from kernels import catalogue

COMPILED = "compile"
"""Name under which torch.compile of the `eager` baseline is known."""
KEPT_PLANS = 64
"""Plans whose buffers stay mapped: the next candidate is measured on the same workloads."""


class Plans:
    """Workloads' buffers in this process, and the calls on them, by the request that described them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._kept: OrderedDict[bytes, tuple[runner.Plan, runner.Calls]] = OrderedDict()

    def find(self, payload: bytes, inputs_fd: int, outputs_fd: int) -> tuple[runner.Plan, runner.Calls]:
        if payload not in self._kept:
            while len(self._kept) >= KEPT_PLANS:
                _, (oldest, _) = self._kept.popitem(last=False)
                oldest.unmap()
            plan = runner.Plan(payload, inputs_fd, outputs_fd)
            self._kept[payload] = (plan, runner.Calls(torch, plan, self._library))
        self._kept.move_to_end(payload)
        return self._kept[payload]


class BaselineExecutor:
    """Runs one named baseline of one operator on the judge's input sets."""

    def __init__(self, payload: bytes, plans: Plans) -> None:
        message = json.loads(payload)
        definition = catalogue.operator(message["operator"])
        name = message["baseline"]
        self._compiled = name == COMPILED
        self._implementation: Callable[..., Any] = definition.baselines["eager" if self._compiled else name]
        self._function = self._implementation
        self._plans = plans
        self._compiled_for: runner.Plan | None = None
        self._calls: runner.Calls | None = None

    def plan(self, payload: bytes, inputs_fd: int, outputs_fd: int) -> None:
        plan, self._calls = self._plans.find(payload, inputs_fd, outputs_fd)
        if self._compiled and self._compiled_for is not plan:
            torch.compiler.reset()
            self._function = torch.compile(self._implementation, dynamic=False)
            self._compiled_for = plan

    def setup(self, numbers: Sequence[int]) -> None:
        raise runner.RefusalError("a baseline has no setup phase")

    def run(self, seed: int, calls: int, pool: Any) -> None:
        assert self._calls is not None
        with torch.inference_mode():
            self._calls.run(self._function, seed, calls, pool)


def main() -> None:
    settings = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    torch.set_num_threads(settings["threads"])
    nothing = os.memfd_create("nothing")
    plans = Plans(ctypes.CDLL(settings["library"]))
    channel = socket.socket(fileno=settings["channel"])
    runner.serve(channel, settings["inputs_fd"], nothing, lambda payload: BaselineExecutor(payload, plans))


if __name__ == "__main__":
    main()
