"""The catalogue of patterns: all there are, by name, and which apply to a search."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from pathlib import Path

from agents.errors import PatternError
from agents.patterns.pattern import Pattern, parse
from agents.patterns.situation import situation
from gristmill.hardware import Hardware
from gristmill.workload import Workload
from kernels.definition import Definition

FOLDER = Path(__file__).resolve().parent


@functools.cache
def patterns() -> tuple[Pattern, ...]:
    """All patterns, by name.

    Raises:
        PatternError: a file is not as `agents.patterns.pattern` says.
    """
    return tuple(parse(path.read_text(), path.stem) for path in sorted(FOLDER.glob("*.md")))


def pattern(name: str) -> Pattern:
    """The pattern of that name, or of that former name.

    Raises:
        PatternError: there is none.
    """
    found = _by_name().get(name)
    if found is None:
        near = difflib.get_close_matches(name, _by_name(), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise PatternError(f"pattern {name!r} is unknown; {meant}./mill patterns lists them all")
    return found


def is_known(name: str) -> bool:
    """Whether the catalogue has a pattern of that name, or formerly had."""
    return name in _by_name()


def canonical(name: str) -> str:
    """What the catalogue calls a pattern that a journal names; the name itself where the catalogue has none."""
    found = _by_name().get(name)
    return found.name if found else name


def applicable(definition: Definition, workloads: Sequence[Workload], hardware: Hardware) -> tuple[Pattern, ...]:
    """The patterns that apply to at least one of these workloads, the best guess first: by merit, weighted by each
    workload's share of the engine's time; then by name.
    """
    situations = [(situation(definition, workload, hardware), _share(workload, workloads)) for workload in workloads]
    merits = {p.name: sum(share * p.merit(s) for s, share in situations) for p in patterns()}
    return tuple(sorted((p for p in patterns() if merits[p.name] > 0), key=lambda p: (-merits[p.name], p.name)))


def _share(workload: Workload, workloads: Sequence[Workload]) -> float:
    """Of the engine's time; even where no time is known."""
    total = sum(w.time_ns for w in workloads)
    return workload.time_ns / total if total else 1 / len(workloads)


@functools.cache
def _by_name() -> dict[str, Pattern]:
    return {name: p for p in patterns() for name in (*p.formerly, p.name)}
