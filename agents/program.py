"""A program that a model wrote: files and what it says of them, checked as far as that goes without running anything,
and made a candidate.

What is found here costs no build and no place in the queue of the judge, and the model hears of it at once.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents import comments, tunable_source
from agents.assignment import MAIN_FILES, Assignment
from agents.errors import PatternError, ProgramError
from agents.quotation import printable
from gristmill.domain import AxisRange, Domain, Layout
from gristmill.errors import DomainError
from kernels.candidate import MAX_SOURCE_BYTES, Candidate, Language, Origin
from kernels.errors import CandidateError

MAX_FILES = 16
MAX_EXTENT = 1 << 40
MAX_COMPLAINTS = 3
HEADER_FILE = "gristmill_kernel.h"
FILE_NAME = re.compile(r"[\w+-][\w.+-]{0,63}(?:/[\w+-][\w.+-]{0,63}){0,3}")
UNWANTED = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that make a text read otherwise than it compiles, and halves of characters."""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(?:\./)?([^"\n]+)"', re.MULTILINE)
FOREIGN = {
    "CUDA": re.compile(r"__global__|<<<\s*\w+\s*,|#include\s*<cuda|cudaStream_t"),
    "HIP": re.compile(r"#include\s*<hip/|hipLaunchKernel"),
    "Triton": re.compile(r"^[ \t]*+(?:import triton|from triton\b)|@triton\.jit", re.MULTILINE),
    "Rust": re.compile(r"#\[no_mangle\]|^[ \t]*+(?:pub )?(?:unsafe )?(?:extern \"C\" )?fn \w+", re.MULTILINE),
}
FUNCTION = re.compile(r"\b([A-Za-z_]\w*+)\s*+\([^;{}()]*+\)[\w\s]*+\{")
NOT_FUNCTIONS = frozenset(("if", "for", "while", "switch", "catch", "return", "sizeof"))

_RANGE = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "minimum": 0, "maximum": MAX_EXTENT} for name in ("low", "high", "multiple")
    },
    "required": ["low", "high"],
    "additionalProperties": False,
}
HEADER_PROPERTIES: Mapping[str, Any] = {
    "domain": {
        "type": "object",
        "description": "Axis name to the extents for which the program is right; axes left out may have any extent",
        "additionalProperties": _RANGE,
    },
    "layout": {
        "enum": [str(layout) for layout in Layout],
        "description": "Weakest memory order of inputs that it reads: contiguous; inner_contiguous (rows dense, any "
        "stride between rows); any",
    },
    "needs_setup": {"type": "boolean", "description": "Whether it exports gm_packed_bytes and gm_setup"},
    "compile_flags": {"type": "array", "items": {"type": "string"}, "maxItems": 16},
    "pattern": {"type": "string", "maxLength": 64, "description": "Name of the optimisation pattern that it follows"},
    "parameters": {
        "type": "object",
        "description": "Constants of the source that a tuner may change, and the values worth trying",
        "maxProperties": tunable_source.MAX_PARAMETERS,
        "additionalProperties": {
            "type": "array",
            "items": {"type": "integer", "minimum": -tunable_source.MAX_VALUE, "maximum": tunable_source.MAX_VALUE},
            "minItems": 1,
            "maxItems": tunable_source.MAX_CHOICES,
        },
    },
}
"""JSON schemas of what a header may say."""


@dataclass(frozen=True)
class Program:
    """Files by name, and the header that goes with them."""

    files: Mapping[str, str]
    header: Mapping[str, Any] = field(default_factory=dict)


def check_header(header: object) -> None:
    """
    Raises:
        ProgramError: it is not what `HEADER_PROPERTIES` allow.
    """
    complaints = schema_complaints(
        header, {"type": "object", "properties": HEADER_PROPERTIES, "additionalProperties": False}
    )
    if complaints:
        raise ProgramError(f"the JSON header is not as expected: {complaints}")


def schema_complaints(value: object, schema: Mapping[str, Any]) -> str:
    """What of a value breaks a JSON schema, in one line; empty if nothing does."""
    import jsonschema  # type: ignore[import-untyped]

    try:
        errors = itertools.islice(jsonschema.Draft202012Validator(schema).iter_errors(value), MAX_COMPLAINTS)
        lines = [f"{error.json_path.removeprefix('$').lstrip('.') or 'it'}: {error.message[:200]}" for error in errors]
    except RecursionError:
        return "it is nested too deeply"
    return "; ".join(lines)


def candidate_of(program: Program, assignment: Assignment, origin: Origin) -> Candidate:
    """The program as a candidate; `origin` gets its pattern and parameters.

    Raises:
        ProgramError: it cannot become one; the message says to the model what to change.
    """
    check_header(program.header)
    own = {name: _clean(name, text) for name, text in program.files.items() if name != HEADER_FILE}
    language = _language(own, assignment)
    files = _with_known_files(own, assignment.known_files)
    _check_native(own, language)
    if language is Language.CPP:
        needs_setup = _check_cpp(files, program.header)
    else:
        needs_setup = False
        _check_python(files["main.py"], assignment)
    try:
        given = program.header.get("parameters", {})
        open_constants = {name: [int(choice) for choice in choices] for name, choices in given.items()}
        files = tunable_source.marked(files, language, open_constants)
        values = {place.name: str(place.value) for place in tunable_source.read(files, language)}
        made = Candidate(
            operator=assignment.brief.operator,
            language=language,
            files=files,
            domain=_domain(program.header, own, files, language, assignment),
            origin=Origin(
                origin.agent,
                " ".join(printable(program.header.get("pattern", "")).split()) or origin.pattern,
                values,
                origin.parents,
                origin.model,
                origin.episode,
            ),
            needs_setup=needs_setup,
            compile_flags=_flags(program.header, assignment),
        )
    except (PatternError, DomainError, CandidateError) as error:
        raise ProgramError(str(error)) from None
    if not any(made.domain.admits(workload) for workload in assignment.brief.workloads):
        raise ProgramError(
            "the domain holds none of the workloads: check the ranges, and whether the layout admits their strides "
            f"({assignment.layout} is needed for all of them)"
        )
    return made


def _clean(name: str, text: str) -> str:
    if not FILE_NAME.fullmatch(name) or ".." in name:
        raise ProgramError(f"file name {name[:80]!r} cannot be used: expected names such as main.cpp or rows.h")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    unwanted = UNWANTED.search(text)
    if unwanted:
        line = text.count("\n", 0, unwanted.start()) + 1
        raise ProgramError(f"{name}, line {line}: character U+{ord(unwanted[0]):04X}; expected plain UTF-8 text")
    return text


def _language(files: Mapping[str, str], assignment: Assignment) -> Language:
    allowed = {MAIN_FILES[language]: language for language in assignment.toolchain.languages}
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_SOURCE_BYTES:
        raise ProgramError(f"expected at most {MAX_FILES} files of {MAX_SOURCE_BYTES >> 10} KiB together")
    mains = [name for name in files if name in allowed]
    if len(mains) != 1:
        listed = ", ".join(name[:40] for name in files) or "none"
        raise ProgramError(f"found files {listed}; expected exactly one of {' or '.join(allowed)}")
    return allowed[mains[0]]


def _with_known_files(files: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Adds what is included and not given, where a parent has it."""
    complete = dict(files)
    waiting = list(files.values())
    while waiting:
        for name in INCLUDE.findall(waiting.pop()):
            if name in known and name not in complete:
                complete[name] = known[name]
                waiting.append(known[name])
    return complete


def _check_native(files: Mapping[str, str], language: Language) -> None:
    for name, text in files.items():
        for foreign, marks in FOREIGN.items():
            found = marks.search(text) if foreign != "Rust" or "#include" not in text else None
            if found:
                raise ProgramError(f"{name} is {foreign}: there is no GPU here; expected {_wanted(language)}")


def _wanted(language: Language) -> str:
    return "C++17 for the CPU" if language is Language.CPP else "Python with torch or numpy on the CPU"


def _check_cpp(files: Mapping[str, str], header: Mapping[str, Any]) -> bool:
    """Returns whether there is a setup phase."""
    code = "\n".join(comments.without(text, Language.CPP) for name, text in files.items() if name != HEADER_FILE)
    if not defines_entry(code, Language.CPP):
        raise ProgramError(
            f"wrong entry point: no function gm_run, found {_functions(code)}; expected "
            "GM_EXPORT int32_t gm_run(const gm_call *call) as in gristmill_kernel.h"
        )
    exports = [name for name in ("gm_setup", "gm_packed_bytes") if re.search(rf"\b{name}\s*\(", code)]
    if len(exports) == 1 or (header.get("needs_setup") and not exports):
        found = exports[0] if exports else "neither"
        raise ProgramError(f"a setup phase needs gm_packed_bytes and gm_setup, found {found}: export both or none")
    return bool(exports) and bool(header.get("needs_setup", True))


def _check_python(text: str, assignment: Assignment) -> None:
    expected = f"def run({', '.join(assignment.parameters)})"
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ProgramError(f"main.py, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ProgramError("main.py cannot be parsed: it is nested too deeply") from None
    if not defines_entry(text, Language.PYTHON):
        found = ", ".join(node.name for node in tree.body if isinstance(node, ast.FunctionDef)) or "none"
        raise ProgramError(f"wrong entry point: no function run, found {found[:200]}; expected {expected}")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            _check_run(node, len(assignment.parameters), expected)


def _check_run(node: ast.FunctionDef, count: int, expected: str) -> None:
    taken = [*node.args.posonlyargs, *node.args.args]
    least = len(taken) - len(node.args.defaults)
    if not least <= count or (count > len(taken) and node.args.vararg is None) or _without_default(node.args):
        raise ProgramError(f"main.py, line {node.lineno}: run takes {len(taken)} arguments; expected {expected}")


def _without_default(arguments: ast.arguments) -> bool:
    """Whether an argument has to be named, which the caller does not do."""
    return any(default is None for default in arguments.kw_defaults)


def defines_entry(code: str, language: Language) -> bool:
    """Whether a text looks like the whole of a program rather than a part of one."""
    if language is Language.CPP:
        return re.search(r"\bgm_run\s*\(", code) is not None
    return re.search(r"^(?:def\s+run\s*\(|run\s*=|from\s+\S+\s+import\b.*\brun\b)", code, re.MULTILINE) is not None


def _functions(code: str) -> str:
    names = dict.fromkeys(name for name in FUNCTION.findall(code[:100_000]) if name not in NOT_FUNCTIONS)
    return ", ".join(list(names)[:5]) or "none"


def _flags(header: Mapping[str, Any], assignment: Assignment) -> tuple[str, ...]:
    flags = tuple(dict.fromkeys(header.get("compile_flags", ())))
    given = [flag for flag in flags if flag not in assignment.toolchain.flags]
    for flag in given:
        if flag not in assignment.toolchain.allowed_flags:
            allowed = " ".join(assignment.toolchain.allowed_flags) or "none"
            raise ProgramError(f"compile flag {flag[:60]!r} is not allowed; choose from {allowed}")
    return tuple(given)


def _domain(
    header: Mapping[str, Any],
    own: Mapping[str, str],
    files: Mapping[str, str],
    language: Language,
    assignment: Assignment,
) -> Domain:
    brief = assignment.brief
    layout = Layout(header["layout"]) if "layout" in header else _layout(files, language)
    if "domain" in header:
        ranges = tuple(_range(name, extents, assignment) for name, extents in header["domain"].items())
    elif len(files) > len(own):  # what a parent's files are right for is what the parent claims
        ranges = brief.parents[0].candidate.domain.ranges
    else:
        ranges = (brief.focus,) if brief.focus is not None else ()
    return Domain(brief.operator, brief.dtype, ranges, layout)


def _range(name: str, extents: Mapping[str, int], assignment: Assignment) -> AxisRange:
    axes = assignment.definition.axes
    if name not in axes:
        raise ProgramError(f"domain: {assignment.definition.name} has no axis {name[:40]!r}; it has {', '.join(axes)}")
    return AxisRange(name, int(extents["low"]), int(extents["high"]), int(extents.get("multiple", 1)))


def _layout(files: Mapping[str, str], language: Language) -> Layout:
    """What may be claimed for a program that does not say: one that reads no stride is right on dense inputs only."""
    if language is Language.PYTHON:
        return Layout.ANY
    reads_strides = any("stride" in text for name, text in files.items() if name != HEADER_FILE)
    return Layout.INNER_CONTIGUOUS if reads_strides else Layout.CONTIGUOUS
