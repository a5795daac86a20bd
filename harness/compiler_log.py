"""What of a compiler's log an agent needs: the first errors, each with its source line, and nothing of this host."""

from __future__ import annotations

import itertools
import re

MAX_ERRORS = 3
MAX_LINE_CHARACTERS = 400
"""An error in a template may quote half the standard library."""
ERROR_LINE = re.compile(r"\b(fatal )?error:|undefined reference|undefined symbol|cannot find|multiple definition")
QUOTED_LINE = re.compile(r"^ *\d* \|")
HOST_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]+")


def errors(log: str) -> str:
    """The first errors, with the source line and the caret under it: no warnings, notes or include stacks, no error
    twice, and no paths but the candidate's own. For an error in a header, the candidate's line that led there is named
    as well. A log without errors is cut to its first lines.
    """
    raw = log.splitlines()
    lines = [_without_paths(line) for line in raw]
    shown: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        if ERROR_LINE.search(line) and line not in shown and len(shown) < MAX_ERRORS:
            quoted = itertools.takewhile(QUOTED_LINE.match, lines[number + 1 : number + 3])
            shown[line] = [*quoted, *(_origin(raw[:number]) if raw[number].startswith("/") else ())]
    found = [line for error, quoted in shown.items() for line in (error, *quoted)]
    return "\n".join(line[:MAX_LINE_CHARACTERS] for line in found or [one for one in lines if one.strip()][:MAX_ERRORS])


def first_error(log: str) -> str:
    """The first error in one line, with its place in the candidate's sources."""
    return errors(log).partition("\n")[0] or "the compiler said nothing"


def _origin(before: list[str]) -> list[str]:
    """The line of the candidate's own from which an error in a header was reached."""
    stack = itertools.takewhile(lambda line: not ERROR_LINE.search(line), reversed(before))
    return next(([line] for line in stack if line.endswith("required from here") and not line.startswith("/")), [])


def _without_paths(line: str) -> str:
    """Headers by their names alone: where they lie is this host's affair."""
    return HOST_PATH.sub(lambda found: found[0].rpartition("/")[2], line)
