"""The process in which baselines run: trusted code, the runner's protocol, and no candidate ever.

A baseline is called as the engine calls it: it takes tensors and allocates its outputs. It is run as a script.
"""

from __future__ import annotations

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
    """Workloads' buffers in this process, and each set's arguments, by the request that described them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[runner.Plan, list[tuple[Any, ...]]]] = OrderedDict()

    def find(self, payload: bytes, inputs_fd: int, outputs_fd: int) -> tuple[runner.Plan, list[tuple[Any, ...]]]:
        if payload not in self._kept:
            while len(self._kept) >= KEPT_PLANS:
                _, (oldest, calls) = self._kept.popitem(last=False)
                calls.clear()
                oldest.unmap()
            plan = runner.Plan(payload, inputs_fd, outputs_fd)
            self._kept[payload] = (plan, [arguments(plan, number) for number in range(plan.sets)])
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
        self._calls: list[tuple[Any, ...]] = []

    def plan(self, payload: bytes, inputs_fd: int, outputs_fd: int) -> None:
        plan, self._calls = self._plans.find(payload, inputs_fd, outputs_fd)
        if self._compiled and self._compiled_for is not plan:
            torch.compiler.reset()
            self._function = torch.compile(self._implementation, dynamic=False)
            self._compiled_for = plan

    def setup(self, numbers: Sequence[int]) -> None:
        raise runner.RefusalError("a baseline has no setup phase")

    def run(self, seed: int, calls: int, pool: Sequence[int]) -> None:
        """Trusted, so the first of the pool, in the order in which they come."""
        function, arguments = self._function, self._calls
        with torch.inference_mode():
            for number in pool[:calls]:
                function(*arguments[number])


def arguments(plan: runner.Plan, number: int) -> tuple[Any, ...]:
    """What a baseline is called with for that set."""
    inputs = zip(plan.addresses(number), plan.inputs, strict=True)
    return (*(runner.view(torch, address, tensor) for address, tensor in inputs), *plan.scalars)


def main() -> None:
    settings = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    torch.set_num_threads(settings["threads"])
    nothing = os.memfd_create("nothing")
    plans = Plans()
    channel = socket.socket(fileno=settings["channel"])
    runner.serve(channel, settings["inputs_fd"], nothing, lambda payload: BaselineExecutor(payload, plans))


if __name__ == "__main__":
    main()
