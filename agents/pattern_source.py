"""A pattern source: a hand-written C++ kernel with constants left open, and how it becomes a candidate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.parameter_space import ParameterSpace, Values
from gristmill.domain import AxisRange, Domain, Layout
from gristmill.hardware import Hardware
from kernels.candidate import Candidate, Language, Origin

SOURCES = Path(__file__).resolve().parent / "sources"
DTYPE_CONSTANTS = {"float32": "GM_FLOAT32", "bfloat16": "GM_BFLOAT16"}


@dataclass(frozen=True)
class Target:
    """What a candidate is specialised for: the machine, the dtype, and a range of the axis that traffic varies."""

    hardware: Hardware
    cores: int
    dtype: str
    tokens: AxisRange
    """Range of the operator's varying axis (tokens, or rows)."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """Floats per vector worth trying, the widest that the hardware has first."""
        if "avx512f" in self.hardware.vector_flags:
            return (16, 8)
        if "avx2" in self.hardware.vector_flags:
            return (8, 16)
        return (4, 8)

    @property
    def registers(self) -> int:
        """Vector registers that the architecture names."""
        wide = {"avx512f", "asimd"} & set(self.hardware.vector_flags)
        return 32 if wide else 16

    @property
    def threads(self) -> tuple[int, ...]:
        """Thread counts worth trying: all cores first, then halves of them down to one."""
        counts = [self.cores]
        while counts[-1] > 1:
            counts.append(counts[-1] // 2)
        return tuple(counts)


@dataclass(frozen=True)
class PatternSource:
    """One way of writing one operator. Everything that depends on the machine is a function of the target."""

    name: str
    """Of the pattern that it follows, as `agents.patterns.catalogue` has it."""
    operator: str
    dtypes: tuple[str, ...]
    source: str
    """File in `sources/` that becomes `main.cpp`; empty where `program` is it."""
    headers: tuple[str, ...]
    """Files in `sources/` that it includes."""
    varying_axis: str
    """The axis that changes from call to call."""
    specialists: tuple[tuple[int, int], ...]
    """Ranges of the varying axis that deserve parameters of their own, ascending, without gaps."""
    space: Callable[[Target], ParameterSpace]
    defaults: Callable[[Target], tuple[Values, ...]]
    """Combinations to try first, the best guess first."""
    technique: Callable[[Target, Mapping[str, int]], str] | None = None
    """Which pattern a combination follows, where that is not the same for all of them."""
    niche: bool = False
    """Whether it is worth trying only where the catalogue says that its pattern applies."""
    needs_setup: bool = False
    compile_flags: tuple[str, ...] = ()
    program: str = ""
    """A generated `main.cpp`."""

    def candidate(self, target: Target, values: Mapping[str, int], agent: str) -> Candidate:
        """The source with its constants filled in, claiming the target's range in any layout with dense rows.

        Raises:
            PatternError: the values lie outside the space.
        """
        self.space(target).check(values)
        main = self.program or _read(self.source)
        files = {"main.cpp": main, **{name: _read(name) for name in self.headers}}
        files["parameters.h"] = render_parameters(target, values)
        pattern = self.technique(target, values) if self.technique else self.name
        return Candidate(
            operator=self.operator,
            language=Language.CPP,
            files=files,
            domain=Domain(self.operator, target.dtype, (target.tokens,), Layout.INNER_CONTIGUOUS),
            origin=Origin(agent, pattern, {name: str(value) for name, value in values.items()}),
            needs_setup=self.needs_setup,
            compile_flags=self.compile_flags,
        )


def render_parameters(target: Target, values: Mapping[str, int]) -> str:
    """The header `parameters.h` that a source includes."""
    lines = ["#pragma once", '#include "gristmill_kernel.h"', f"constexpr int DTYPE = {DTYPE_CONSTANTS[target.dtype]};"]
    lines += [f"constexpr int MIN_TOKENS = {target.tokens.low};", f"constexpr int MAX_TOKENS = {target.tokens.high};"]
    lines += [f"constexpr int {name} = {value};" for name, value in sorted(values.items())]
    return "\n".join(lines) + "\n"


@functools.cache
def _read(name: str) -> str:
    return (SOURCES / name).read_text()
