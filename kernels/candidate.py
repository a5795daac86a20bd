"""A candidate: source code that claims to implement an operator. Data only; nothing here runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath

from gristmill import records
from gristmill.domain import Domain
from kernels.errors import CandidateError

MAX_SOURCE_BYTES = 1 << 20
"""All files of a candidate together; more is a refusal, not a longer build."""


class Language(StrEnum):
    """How a candidate is built and called."""

    CPP = "cpp"
    """C++ against `abi/gristmill_kernel.h`; exports `gm_run`."""
    PYTHON = "python"
    """`main.py` defines `run(*inputs, *scalars, *outputs)` and writes the outputs in place."""


@dataclass(frozen=True)
class Origin:
    """Who proposed a candidate, and from what."""

    agent: str
    """Name of the agent, e.g. `pattern:skinny_linear` or `baseline`."""
    pattern: str = ""
    """Optimisation pattern it instantiates."""
    parameters: dict[str, str] = field(default_factory=dict)
    """Tunable constants, as text."""
    parents: tuple[str, ...] = ()
    """Digests of the candidates it was derived from."""
    model: str = ""
    """Language model that wrote it."""
    episode: str = ""
    """Id of the episode, with its prompts, that led to it."""


@dataclass(frozen=True)
class Candidate:
    """Immutable and content-addressed: the digest covers what is built and where it may run, not who wrote it."""

    operator: str
    language: Language
    files: dict[str, str]
    """Source text by relative path; the first to be compiled is `main.cpp` or `main.py`."""
    domain: Domain
    """Where it claims to be right."""
    origin: Origin
    needs_setup: bool = False
    """Whether it exports a setup phase that packs the weights."""
    compile_flags: tuple[str, ...] = ()
    """Extra compiler flags, from the builder's allow-list."""

    def __post_init__(self) -> None:
        main = f"main.{'cpp' if self.language is Language.CPP else 'py'}"
        if main not in self.files:
            raise CandidateError(
                f"candidate for {self.operator}: no file {main}, found {', '.join(self.files) or 'none'}"
            )
        for path in self.files:
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or "\0" in path or not pure.parts:
                raise CandidateError(f"candidate for {self.operator}: path {path!r} leaves the candidate's folder")
        if sum(len(text.encode(errors="replace")) for text in self.files.values()) > MAX_SOURCE_BYTES:
            raise CandidateError(f"candidate for {self.operator}: sources exceed {MAX_SOURCE_BYTES} bytes")

    @cached_property
    def digest(self) -> str:
        """Content address of operator, language, files, domain, setup and flags."""
        return records.digest(
            [self.operator, self.language, self.files, self.domain, self.needs_setup, self.compile_flags]
        )
