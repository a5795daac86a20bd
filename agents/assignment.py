"""An assignment: what one agent works on, with the operator's definition and what a builder takes."""

from __future__ import annotations

from dataclasses import dataclass

from agents.brief import Brief
from gristmill.domain import Layout
from gristmill.workload import ITEM_BYTES, Workload
from kernels.candidate import Language
from kernels.definition import Definition

MAIN_FILES = {Language.CPP: "main.cpp", Language.PYTHON: "main.py"}


@dataclass(frozen=True)
class Toolchain:
    """What becomes of sources here. Whoever owns the judge fills it in."""

    flags: tuple[str, ...] = ()
    """That every C++ candidate is compiled with."""
    allowed_flags: tuple[str, ...] = ()
    """That it may ask for besides."""
    languages: tuple[Language, ...] = (Language.CPP, Language.PYTHON)
    """The preferred one first."""


@dataclass(frozen=True)
class Assignment:
    """One brief, and all that is needed to explain it and to make a candidate of an answer to it."""

    brief: Brief
    definition: Definition
    toolchain: Toolchain = Toolchain()

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a Python candidate's `run` takes, in order."""
        definition = self.definition
        inputs, outputs = (tuple(spec.name for spec in specs) for specs in (definition.inputs, definition.outputs))
        return (*inputs, *(scalar.name for scalar in definition.scalars), *outputs)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The brief's, the weightiest first: in this order a prompt numbers them."""
        brief = self.brief
        return tuple(sorted(brief.workloads, key=lambda workload: (-brief.weight(workload), workload.label)))

    @property
    def known_files(self) -> dict[str, str]:
        """Files of the parents that a candidate may include without repeating them; the first parent's win."""
        files: dict[str, str] = {}
        for parent in reversed(self.brief.parents):
            files.update(parent.candidate.files)
        return files

    @property
    def layout(self) -> Layout:
        """The strictest one that admits all workloads."""
        for layout in (Layout.CONTIGUOUS, Layout.INNER_CONTIGUOUS):
            if all(layout.admits(tensor) for workload in self.brief.workloads for tensor in workload.inputs):
                return layout
        return Layout.ANY

    def floor_ns(self, workload: Workload) -> float:
        """The longer of moving the bytes at the measured bandwidth and of computing at the measured peak."""
        cost = self.definition.cost(workload.axes, ITEM_BYTES[workload.dtype])
        return max(cost.bytes_moved / self.brief.bandwidth_gb_s, cost.flops / self.brief.gflop_s)
