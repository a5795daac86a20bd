"""A module to be recorded, from a file: a Python file that makes it, or a program that `torch.export.save` wrote."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import ModelFileError
from cli.model_example import NAMES, TOKENS

if TYPE_CHECKING:
    from kernels.drafts.extents import Pair
    from kernels.models.recording import Recording

FUNCTION = "example"


@dataclass(frozen=True)
class Traced:
    """What was recorded: twice where sizes can be chosen, once where they cannot."""

    recordings: tuple[Recording, ...]
    names: dict[Pair, str]


def traced(path: Path) -> Traced:
    """The recordings.

    Raises:
        ModelFileError: there is no such file, or it does not hold what can be recorded.
    """
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file; name a .py file with {FUNCTION}(tokens), or an exported .pt2")
    if path.suffix == ".pt2":
        return Traced((_of_program(path),), {})
    if path.suffix == ".py":
        return Traced(tuple(_of_module(path, tokens) for tokens in TOKENS), {TOKENS: NAMES[TOKENS]})
    raise ModelFileError(f"{path}: expected a .py file with {FUNCTION}(tokens), or a .pt2 that torch.export.save wrote")


def _of_program(path: Path) -> Recording:
    import torch

    from kernels.models.recording import record_program

    try:
        program = torch.export.load(path)
    except Exception as error:  # whatever a damaged file makes of torch's reader
        raise ModelFileError(f"{path}: torch.export.load cannot read it ({str(error).splitlines()[0][:120]})") from None
    return record_program(program)


def _of_module(path: Path, tokens: int) -> Recording:
    """The file is run: it is the user's own program."""
    from kernels.models.recording import record

    made = runpy.run_path(str(path)).get(FUNCTION)
    if not callable(made):
        raise ModelFileError(f"{path}: expected a function {FUNCTION}(tokens) that returns (module, arguments)")
    found: Any = made(tokens)
    if not isinstance(found, tuple) or len(found) != 2 or not callable(found[0]) or not isinstance(found[1], tuple):
        raise ModelFileError(f"{path}: {FUNCTION}({tokens}) must return (module, tuple of arguments)")
    return record(found[0], found[1])
