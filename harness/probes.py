"""Kernels whose speed relative to one another is known: the same one twice, or one that does so much more of the work.

What the judge says of them says how far the judge can be trusted on this host.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gristmill.domain import Domain
from gristmill.workload import Workload
from kernels import catalogue, inputs
from kernels.candidate import Candidate, Language, Origin

SOURCES = Path(__file__).with_name("probe_sources")
DTYPE = "float32"
CASES: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("rms_norm", {"tokens": 1, "hidden": 1024}),
    ("rms_norm", {"tokens": 16, "hidden": 1024}),
    ("rms_norm", {"tokens": 256, "hidden": 1024}),
    ("softmax", {"rows": 4, "columns": 4096}),
    ("skinny_linear", {"tokens": 1, "in_features": 512, "out_features": 512}),
    ("skinny_linear", {"tokens": 4, "in_features": 1024, "out_features": 1024}),
)
"""From a microsecond to a millisecond, in caches and from memory."""


def workloads() -> tuple[Workload, ...]:
    """One per case."""
    return tuple(inputs.workload(catalogue.operator(operator), DTYPE, **axes) for operator, axes in CASES)


def probe(operator: str, extra: int = 0) -> Candidate:
    """A plain kernel that computes the first `extra` of its rows (skinny_linear: of its outputs) once more.

    `extra` is at most the number of rows.
    """
    text = (SOURCES / f"{operator}.cpp").read_text()
    return Candidate(
        operator=operator,
        language=Language.CPP,
        files={"main.cpp": f"#define EXTRA {extra}\n{text}"},
        domain=Domain(operator, DTYPE),
        origin=Origin("probe", parameters={"extra": str(extra)}),
    )


def rows(workload: Workload) -> int:
    """How many rows (skinny_linear: outputs) a probe computes on that workload."""
    return workload.axes.get("out_features") or workload.axes.get("tokens") or workload.axes["rows"]
