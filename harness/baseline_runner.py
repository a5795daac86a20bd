"""The process in which baselines run: trusted code, the runner's protocol, and no candidate ever.

A baseline is called as the engine calls it: it takes tensors and allocates its outputs. It is run as a script.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness import runner
from kernels import catalogue

COMPILED = "compile"
"""Name under which torch.compile of the `eager` baseline is known."""


class BaselineExecutor:
    """Runs one named baseline of one operator on the judge's input sets."""

    def __init__(self, message: dict[str, Any]) -> None:
        definition = catalogue.operator(message["operator"])
        name = message["baseline"]
        self._compiled = name == COMPILED
        self._implementation: Callable[..., Any] = definition.baselines["eager" if self._compiled else name]
        self._function = self._implementation
        self._plan: runner.Plan | None = None
        self._calls: list[tuple[Any, ...]] = []

    def plan(self, plan: runner.Plan) -> None:
        self._calls = []
        if self._plan is not None:
            self._plan.unmap()
        self._plan = plan
        for addresses in plan.addresses:
            inputs = [
                runner.view(torch, address, layout) for address, layout in zip(addresses, plan.inputs, strict=False)
            ]
            self._calls.append((*inputs, *plan.scalars))
        if self._compiled:
            torch.compiler.reset()
            self._function = torch.compile(self._implementation, dynamic=False)

    def setup(self, numbers: Iterable[int]) -> None:
        raise runner.RefusalError("a baseline has no setup phase")

    def run(self, numbers: Iterable[int]) -> None:
        function, calls = self._function, self._calls
        with torch.inference_mode():
            for number in numbers:
                function(*calls[number])


def main() -> None:
    settings = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    torch.set_num_threads(settings["threads"])
    nothing = os.memfd_create("nothing")
    runner.serve(socket.socket(fileno=settings["channel"]), settings["inputs_fd"], nothing, BaselineExecutor)


if __name__ == "__main__":
    main()
