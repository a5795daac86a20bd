"""Kernels whose speed relative to one another is known: the same one twice, or one that takes longer by a known share.

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
WAIT = "slower.h"
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


def probe(operator: str, slower: float | None = None) -> Candidate:
    """A plain kernel, or one that then waits for that share of the time that it took: slower by just so much than with
    another share, whatever the workload and the host, since all else in it is the same.
    """
    files = {"main.cpp": (SOURCES / f"{operator}.cpp").read_text()}
    if slower is not None:
        files = {"main.cpp": f"#define SLOWER {slower}\n{files['main.cpp']}", WAIT: (SOURCES / WAIT).read_text()}
    return Candidate(
        operator=operator,
        language=Language.CPP,
        files=files,
        domain=Domain(operator, DTYPE),
        origin=Origin("probe", parameters={"slower": str(slower)}),
    )
