"""Source text without its comments, in time that grows with its length, whatever a model wrote."""

from __future__ import annotations

import re

from kernels.candidate import Language

LINE = re.compile(r"//[^\n]*")
CPP = re.compile(r"//[^\n]*|/\*.*?\*/|(?P<open>/\*.*)", re.DOTALL)
"""The last form takes all that is left, so that only one comment is looked for that never ends."""
PYTHON = re.compile(r"#[^\n]*")


def without(text: str, language: Language) -> str:
    """A space for each comment. One that never ends is none: the mark may stand in a string."""
    if language is Language.PYTHON:
        return PYTHON.sub(" ", text)
    return CPP.sub(_gap, text)


def _gap(found: re.Match[str]) -> str:
    return " " if found["open"] is None else "/*" + LINE.sub(" ", found["open"][2:])
