"""From a model's answer to programs, or to what was wrong with it and what the model is to hear of that."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents import blocks
from agents.assignment import MAIN_FILES, Assignment
from agents.blocks import Block
from agents.chat import Finish
from agents.episode import Outcome
from agents.errors import ProgramError
from agents.program import HEADER_FILE, HEADER_PROPERTIES, INCLUDE, Program, candidate_of, check_header, defines_entry
from kernels.candidate import Candidate, Language, Origin

MAX_CHARACTERS = 400_000
MAX_PROGRAMS = 4
PARSE_ATTEMPTS = 40
LANGUAGES = {
    **dict.fromkeys(("cpp", "c++", "cc", "cxx", "c", "h", "hpp"), Language.CPP),
    **dict.fromkeys(("python", "py", "python3"), Language.PYTHON),
}
FOREIGN_LANGUAGES = frozenset(
    ("cuda", "cu", "rust", "rs", "go", "julia", "java", "javascript", "js", "zig", "triton", "hip")
)
REFUSAL = re.compile(
    r"\bI(?:['\u2019]m| am) (?:sorry|unable|not able)\b|\bI (?:can(?:not|['\u2019]t)|won['\u2019]t|must decline)\b"
    r"|\bI(?:['\u2019]d| would) (?:rather|prefer) not\b|\bas an AI\b",
    re.IGNORECASE,
)
CPP_START = re.compile(
    r"^(?:#include\b|#pragma\b|#define\b|//|/\*|namespace\b|template\b|static\b|constexpr\b|GM_EXPORT\b|extern\b)"
)
PYTHON_START = re.compile(r"^(?:import |from \S+ import|def |@|\"\"\"|#|[A-Z_]+\s*=)")
HOW = (
    "Answer with one fenced code block per file, its name after the language (```cpp main.cpp), "
    "and before it, if anything has to be said, a ```json header block."
)


@dataclass(frozen=True)
class Reading:
    """What an answer holds."""

    outcome: Outcome
    """`submitted` where there is at least one candidate."""
    candidates: tuple[Candidate, ...] = ()
    """The last one in the answer first: models put forward what they arrive at."""
    feedback: tuple[str, ...] = ()
    """What to tell the model, one line each; also of programs that were left out beside good ones."""

    @property
    def reason(self) -> str:
        return self.feedback[0] if self.feedback else ""


@dataclass(frozen=True)
class _Draft:
    """Files that belong together."""

    files: Mapping[str, str]
    header: Mapping[str, Any]
    whole: bool
    """Whether every block of it was closed."""


@dataclass
class _Piece:
    """A block that is a file, at its place among the blocks."""

    at: int
    name: str
    block: Block
    taken: bool = False
    """By a program before."""

    @property
    def is_main(self) -> bool:
        return self.name in MAIN_FILES.values()


def read(text: str, finish: Finish, assignment: Assignment, origin: Origin) -> Reading:
    """Reads one answer. Whatever the text is, this returns; see the module's tests for what counts as what.

    Each block that is named as a main file, or has the entry point, is a program, with the named blocks that it
    includes: of several with one name that which no earlier program took, before it or after it. A header speaks for
    the programs after it. An answer that was cut off is `truncated`, unless a program in it is whole.
    """
    if finish is Finish.REFUSED:
        return Reading(Outcome.REFUSED, feedback=("the model refused to answer",))
    if len(text) > MAX_CHARACTERS:
        return Reading(
            Outcome.MALFORMED, feedback=(f"the answer has {len(text)} characters; expected at most {MAX_CHARACTERS}",)
        )
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        return _empty(finish)
    found = blocks.split(text)
    cut = finish is Finish.LENGTH or any(not block.closed for block in found)
    drafts, problems = _drafts(found, assignment)
    if not found and not cut:
        drafts = list(_unfenced(blocks.without_thinking(text), assignment))
    candidates, more_problems = _candidates(drafts, cut, assignment, origin)
    problems += more_problems
    if candidates:
        return Reading(Outcome.SUBMITTED, candidates, tuple(problems))
    if cut:
        line = "the answer was cut off before the program was whole: write a shorter program and less around it"
        return Reading(Outcome.TRUNCATED, feedback=(line, *problems))
    if problems:
        return Reading(Outcome.MALFORMED, feedback=(*problems, HOW))
    return _without_program(text, found, assignment)


def _empty(finish: Finish) -> Reading:
    if finish is Finish.LENGTH:
        return Reading(
            Outcome.TRUNCATED, feedback=("the answer was cut off before it began: think less, answer sooner",)
        )
    return Reading(Outcome.EMPTY, feedback=("the answer was empty", HOW))


def _without_program(text: str, found: Sequence[Block], assignment: Assignment) -> Reading:
    foreign = [block.language for block in found if block.language in FOREIGN_LANGUAGES]
    wanted = " or ".join(MAIN_FILES[language] for language in assignment.toolchain.languages)
    if foreign:
        return Reading(Outcome.MALFORMED, feedback=(f"the code is {foreign[0]}; expected {wanted}", HOW))
    if not found and REFUSAL.search(blocks.without_thinking(text)[:2000]):
        return Reading(Outcome.REFUSED, feedback=("the model refused in words",))
    if not blocks.without_thinking(text).strip():
        return Reading(Outcome.EMPTY, feedback=("the answer held nothing but thoughts", HOW))
    return Reading(Outcome.NO_CODE, feedback=("the answer holds no program", HOW))


def _candidates(
    drafts: Sequence[_Draft], cut: bool, assignment: Assignment, origin: Origin
) -> tuple[tuple[Candidate, ...], list[str]]:
    made: dict[str, Candidate] = {}
    problems: list[str] = []
    for draft in reversed(drafts):
        if cut and not (draft.whole and _self_contained(draft, assignment)):
            continue
        try:
            candidate = candidate_of(Program(draft.files, draft.header), assignment, origin)
        except ProgramError as error:
            problems.append(str(error))
            continue
        made.setdefault(candidate.digest, candidate)
    if len(made) > MAX_PROGRAMS:
        problems.append(f"the answer holds {len(made)} programs; the last {MAX_PROGRAMS} were taken")
    return tuple(made.values())[:MAX_PROGRAMS], problems


def _self_contained(draft: _Draft, assignment: Assignment) -> bool:
    """Whether what was cut off cannot have been one of its files."""
    known = {*draft.files, *assignment.known_files, HEADER_FILE}
    return all(name in known for text in draft.files.values() for name in INCLUDE.findall(text))


def _drafts(found: Sequence[Block], assignment: Assignment) -> tuple[list[_Draft], list[str]]:
    """Programs in their order, and what is wrong with headers."""
    headers, problems = _headers(found)
    pieces = [_Piece(at, name, block) for at, block in enumerate(found) if (name := _file_name(block))]
    mains = [piece for piece in pieces if piece.is_main] or _likely_main(found, assignment)
    drafts = []
    for number, main in enumerate(mains):
        end = mains[number + 1].at if number + 1 < len(mains) else len(found)
        files = {main.name: main.block.text}
        helpers = _helpers(main, [piece for piece in pieces if not piece.is_main], end)
        files.update((piece.name, piece.block.text) for piece in helpers)
        before = [header for at, header in headers if at < main.at]
        last = number == len(mains) - 1
        header = before[-1] if before else headers[-1][1] if headers and last else {}
        if header is not None:
            drafts.append(_Draft(files, header, all(piece.block.closed for piece in (main, *helpers))))
    return drafts, problems


def _headers(found: Sequence[Block]) -> tuple[list[tuple[int, dict[str, Any] | None]], list[str]]:
    """By place; None stands for one that cannot be followed, without which its programs would claim something else."""
    headers: list[tuple[int, dict[str, Any] | None]] = []
    problems: list[str] = []
    for at, block in enumerate(found):
        if block.closed and (block.language in ("json", "jsonc") or block.name.endswith(".json")):
            try:
                header = _read_header(block)
                headers += [(at, header)] if header else []
            except ProgramError as error:
                headers.append((at, None))
                problems.append(str(error))
    return headers, problems


def _helpers(main: _Piece, pieces: Sequence[_Piece], end: int) -> list[_Piece]:
    """What a program needs besides its main file: what it includes, or all other modules if it is Python."""
    chosen: dict[str, _Piece] = {}
    modules = [piece.name for piece in pieces if piece.name.endswith(".py")] if main.name.endswith(".py") else []
    wanted = [*_included(main.block.text), *modules]
    while wanted:
        name = wanted.pop()
        piece = _nearest(name, main.at, pieces, end)
        if piece is not None and name not in chosen:
            chosen[name] = piece
            wanted += _included(piece.block.text)
    for piece in chosen.values():
        piece.taken = True
    return list(chosen.values())


def _nearest(name: str, at: int, pieces: Sequence[_Piece], end: int) -> _Piece | None:
    """The version of a file that goes with the main file at this place, whose blocks end before `end`."""
    before = [piece for piece in pieces if piece.name == name and piece.at < at]
    after = [piece for piece in pieces if piece.name == name and at < piece.at < end]
    fresh = [piece for piece in before if not piece.taken]
    return next(iter(fresh[-1:] or after[:1] or before[-1:]), None)


def _included(text: str) -> list[str]:
    return INCLUDE.findall(text)


def _likely_main(found: Sequence[Block], assignment: Assignment) -> list[_Piece]:
    """The longest block in a language that is wanted: it has no entry point, and the model is told so."""
    likely = [
        _Piece(at, MAIN_FILES[language], block)
        for at, block in enumerate(found)
        if (language := _language(block)) in assignment.toolchain.languages and language is not None
    ]
    return sorted(likely, key=lambda piece: len(piece.block.text))[-1:]


def _file_name(block: Block) -> str:
    """The file that a block is: a main file if it has the entry point, else as named; empty for snippets and output."""
    language = _language(block)
    base = block.name.rpartition("/")[2]
    if base == HEADER_FILE or base.endswith(".json"):
        return ""
    if base in MAIN_FILES.values():
        return base
    if language is not None and _is_main(block, language):
        return MAIN_FILES[language]
    return block.name


def _is_main(block: Block, language: Language) -> bool:
    return defines_entry(block.text, language) and (language is Language.PYTHON or "{" in block.text)


def _language(block: Block) -> Language | None:
    suffix = block.name.rpartition(".")[2] if block.name else ""
    named = LANGUAGES.get(suffix) or LANGUAGES.get(block.language)
    if named is not None or block.language in FOREIGN_LANGUAGES:
        return named
    if block.language in ("json", "bash", "sh", "shell", "console", "diff", "asm", "nasm", "yaml"):
        return None
    for language in (Language.CPP, Language.PYTHON):
        if defines_entry(block.text, language):
            return language
    return None


def _read_header(block: Block) -> dict[str, Any]:
    """The fields that are known; empty if the block is something else.

    Raises:
        ProgramError: it is meant as a header and is none.
    """
    if not any(f'"{name}"' in block.text for name in HEADER_PROPERTIES):
        return {}
    try:
        value = json.loads(block.text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"the JSON header cannot be read ({str(error)[:120]})") from None
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if name in HEADER_PROPERTIES}
    check_header(value)
    header: dict[str, Any] = value
    return header


def _unfenced(text: str, assignment: Assignment) -> Iterator[_Draft]:
    """The program of an answer that is code and prose without fences, if there is one."""
    for language in assignment.toolchain.languages:
        if not defines_entry(text, language):
            continue
        code = _cpp_of(text) if language is Language.CPP else _python_of(text)
        if code and defines_entry(code, language):
            yield _Draft({MAIN_FILES[language]: code}, {}, True)
            return


def _cpp_of(text: str) -> str:
    """From the first line that can only be code to the last brace."""
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if CPP_START.match(line)), None)
    last = next((number for number in reversed(range(len(lines))) if re.match(r"^\s*\}", lines[number])), None)
    if first is None or last is None or last <= first:
        return ""
    end = last + 1 + sum(1 for line in lines[last + 1 : last + 3] if line.startswith("#endif"))
    return "\n".join(lines[first:end]) + "\n"


def _python_of(text: str) -> str:
    """From the first line that looks like code, as far as it can be parsed."""
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if PYTHON_START.match(line)), None)
    if first is None:
        return ""
    end = len(lines)
    for _ in range(PARSE_ATTEMPTS):
        code = "\n".join(lines[first:end]) + "\n"
        try:
            ast.parse(code)
        except SyntaxError as error:
            end = min(end - 1, first + max(0, (error.lineno or 1) - 1))
        except (ValueError, RecursionError, MemoryError):
            return ""
        else:
            return code
        if end <= first:
            return ""
    return ""
