"""Code blocks of a model's answer.

Not CommonMark: models indent fences as they please, put file names where an info string or a heading should be, wrap
whole answers in a fence, and think aloud first. Lines are all that is looked at, so that a long answer costs no more
than its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?:>[ \t]?)?(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^`\n]*+)$")
THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL)
CLOSED_THINKING = re.compile(r"\A.*?</(?:think|thinking|reasoning)>", re.DOTALL)
"""Some servers strip the opening tag."""
FILE_NAME = r"(?:[\w.+-]+/)*[\w+-]+\.(?:cpp|cc|cxx|c|h|hpp|py|json|cu)"
NAME_IN_INFO = re.compile(rf"(?:^|[\s:=\"'{{(])(?P<name>{FILE_NAME})(?=$|[\s\"')}}])")
NAME_LINE = re.compile(
    rf"^[\s#>*_`\d.)(-]*(?:(?:file|filename|path)\b[\s:*=]*)?[*_`\"']*(?P<name>{FILE_NAME})[*_`\"']*"
    r"\s*(?:\([^)]*\))?[\s:*_`]*$",
    re.IGNORECASE,
)
FIRST_LINE_NAME = re.compile(
    rf"^\s*(?://|#|/\*)\s*(?:(?:file|filename|path)\s*:?\s*)?(?P<name>{FILE_NAME})\s*(?:\*/)?\s*$"
)
WRAPPERS = frozenset(("markdown", "md"))
MAX_BLOCKS = 64
LOOKED_AT = 120
"""Characters of a line that are searched for a name: the search takes their cube in the worst case."""


@dataclass(frozen=True)
class Block:
    """One fenced block. `name` is that of a file, if the answer gives one."""

    language: str
    """First word of the info string, lower case."""
    name: str
    text: str
    """With a newline at its end, without the fence's indentation."""
    closed: bool = True


def split(text: str) -> list[Block]:
    """The blocks in order, at most `MAX_BLOCKS`; an unclosed last one is `closed=False`. What the model thought is left
    out, and so are fences that wrap an answer's prose.
    """
    lines = without_thinking(text).split("\n")
    blocks: list[Block] = []
    wrapped = False
    at = 0
    while at < len(lines) and len(blocks) < MAX_BLOCKS:
        opened = FENCE.match(lines[at])
        at += 1
        if opened is None:
            continue
        if _language(opened["info"]) in WRAPPERS:
            wrapped = True
            continue
        end = _closing(lines, at, opened["fence"])
        if end is None and wrapped and not opened["info"].strip():
            wrapped = False
            continue
        block = _block(opened, lines[at : len(lines) if end is None else end], _line_before(lines, at - 2), end)
        if block.closed or block.text.strip():
            blocks.append(block)
        at = len(lines) if end is None else end + 1
    return blocks


def without_thinking(text: str) -> str:
    """The text without what stands between a reasoning model's tags."""
    return CLOSED_THINKING.sub("", THINKING.sub("", text), count=1)


def _closing(lines: list[str], start: int, fence: str) -> int | None:
    """Line of the fence that closes; one with an info string that follows an open block closes nothing."""
    for number in range(start, len(lines)):
        stripped = lines[number].strip(" \t>")
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return number
    return None


def _block(opened: re.Match[str], body: list[str], before: str, end: int | None) -> Block:
    indent = opened["indent"]
    text = "".join(f"{line.removeprefix(indent)}\n" for line in body)
    found = NAME_IN_INFO.search(opened["info"][:LOOKED_AT]) or FIRST_LINE_NAME.match(_short(body[0]) if body else "")
    found = found or NAME_LINE.match(before)
    return Block(_language(opened["info"]), found["name"] if found else "", text, closed=end is not None)


def _language(info: str) -> str:
    """`cpp` of `cpp main.cpp`, `c++ title="main.cpp"`, `{.cpp}` or `cpp:main.cpp`; empty if that is a file's name."""
    info = info[:LOOKED_AT]
    words = re.split(r"[\s:,{}]+", info.strip().lower().replace("{.", ""))
    first = next((word for word in words if word), "")
    return "" if NAME_IN_INFO.search(first) else first


def _line_before(lines: list[str], at: int) -> str:
    """The last line with text before a fence, at most one blank line away."""
    for number in (at, at - 1):
        if number >= 0 and lines[number].strip():
            return _short(lines[number])
    return ""


def _short(line: str) -> str:
    """The line, or nothing of one that is too long to be a name."""
    return line if len(line) <= LOOKED_AT else ""
