"""What of a compiler's log an agent needs: the first errors, each with its source line, and nothing of this host."""

from __future__ import annotations

import itertools
import re

MAX_ERRORS = 3
MAX_LINE_CHARACTERS = 400
"""An error in a template may quote half the standard library."""
ERROR_LINE = re.compile(r"\b(fatal )?error:|undefined reference|undefined symbol|cannot find|multiple definition")
QUOTED_LINE = re.compile(r"^ *\d* \|")
SOURCE_ERROR = re.compile(
    r"^[^:\n]+:\d+(:\d+)?: (fatal )?error:|undefined reference|undefined symbol|multiple definition",
    re.IGNORECASE | re.MULTILINE,
)
LINKER_REFUSED = "ld returned 1 exit status"
HOST_LIMITS = {
    "File size limit exceeded": "this shell allows no files of that size; raise its limit (ulimit -f unlimited)",
    "File too large": "this shell allows no files of that size; raise its limit (ulimit -f unlimited)",
    "CPU time limit exceeded": "this shell allows too little CPU time; raise its limit (ulimit -t unlimited)",
    "No space left on device": "no space is left for its files; free some, in TMPDIR as well",
    "virtual memory exhausted": "the host gave it too little memory; free some, or raise the limit (ulimit -v)",
    "Cannot allocate memory": "the host gave it too little memory; free some, or raise the limit (ulimit -v)",
    "out of memory": "the host gave it too little memory; free some, or raise the limit (ulimit -v)",
    "terminated program cc1": "something ended the compiler (too little memory, perhaps); free some and try again",
}
"""What a compiler says that was stopped by its host, and what that means."""
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


def blames_source(log: str) -> bool:
    """Whether the compiler or the linker found a fault in the sources. It will again: whatever else ends a build (a
    signal, a full disk, a limit) may not.
    """
    return SOURCE_ERROR.search(log) is not None or (LINKER_REFUSED in log and not stopped_by(log))


def stopped_by(log: str) -> str:
    """Which limit of the host ended the compiler, and what to do; empty if its log names none."""
    found = (meaning for complaint, meaning in HOST_LIMITS.items() if complaint.lower() in log.lower())
    return next(found, "")


def _origin(before: list[str]) -> list[str]:
    """The line of the candidate's own from which an error in a header was reached."""
    stack = itertools.takewhile(lambda line: not ERROR_LINE.search(line), reversed(before))
    return next(([line] for line in stack if line.endswith("required from here") and not line.startswith("/")), [])


def _without_paths(line: str) -> str:
    """Headers by their names alone: where they lie is this host's affair."""
    return HOST_PATH.sub(lambda found: found[0].rpartition("/")[2], line)
