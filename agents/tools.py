"""What a model can do besides answering: build, check and measure programs on the live judge, look at what the compiler
made, and ask the memory.

A mistake in a call is answered, never raised. Programs are passed as their files; once passed, they have a short name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents import prompt
from agents.assignment import Assignment
from agents.chat import Tool, ToolCall
from agents.errors import ProgramError
from agents.memory import Memory
from agents.program import HEADER_PROPERTIES, MAX_FILES, Program, candidate_of, schema_complaints
from agents.proposals import Proposals
from agents.quotation import clipped, fenced
from agents.workshop import Workshop
from gristmill.workload import Workload
from kernels.candidate import Candidate, Origin
from kernels.verdict import Verdict

MAX_RESULT = 12_000
"""Characters that one call returns."""
MAX_ARGUMENTS = 400_000
MAX_FOUND = 8
"""Lines of memory."""

_PROGRAM: Mapping[str, Any] = {
    "files": {
        "type": "object",
        "description": "Source text by file name, with main.cpp or main.py",
        "additionalProperties": {"type": "string"},
        "minProperties": 1,
        "maxProperties": MAX_FILES,
    },
    "program": {"type": "string", "description": "Instead of files: the name that an earlier call gave a program"},
    **HEADER_PROPERTIES,
}
_WORKLOADS: Mapping[str, Any] = {
    "workloads": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "minItems": 1,
        "description": "Numbers of workloads as listed; left out, all of them",
    }
}


def _schema(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


READ_DEFINITION = Tool("read_definition", "The operator, its reference, the workloads and the convention.", _schema({}))
BUILD = Tool("build", "Compiles a program. Cheap.", _schema(_PROGRAM))
CHECK = Tool("check", "Checks a program for correctness and times it roughly.", _schema({**_PROGRAM, **_WORKLOADS}))
MEASURE = Tool(
    "measure", "Checks a program and times it as the search does. Takes seconds.", _schema({**_PROGRAM, **_WORKLOADS})
)
INSPECT = Tool("inspect_assembly", "Disassembly of a program's innermost loops.", _schema(_PROGRAM))
SEARCH = Tool(
    "search_memory",
    "What earlier searches learned, for a few words.",
    _schema({"query": {"type": "string", "maxLength": 200}}, ["query"]),
)
SUBMIT = Tool("submit", "Hands a program in and ends the work. Once, at the end.", _schema(_PROGRAM))


class Toolbox:
    """The tools of one episode. One thread calls it."""

    def __init__(
        self,
        assignment: Assignment,
        workshop: Workshop,
        memory: Memory | None,
        proposals: Proposals,
        redact: Callable[[str], str],
        origin: Origin,
    ) -> None:
        self._assignment = assignment
        self._workshop = workshop
        self._memory = memory
        self._proposals = proposals
        self._redact = redact
        self._origin = origin
        self._programs: dict[str, Candidate] = {}
        self._old: set[str] = set()
        """Names of programs that were known when they came: what is measured here becomes known."""
        self._best: tuple[float, Candidate] | None = None
        self._answers: dict[tuple[str, str, tuple[int, ...]], str] = {}
        self.submitted: Candidate | None = None
        self.handed_in_known = False
        """Whether a program was handed in, here or in an answer, that was proposed before."""
        self._handlers: dict[str, Callable[[dict[str, Any]], str]] = {
            READ_DEFINITION.name: lambda arguments: prompt.definition_text(assignment),
            BUILD.name: self._build,
            CHECK.name: lambda arguments: self._judged(CHECK.name, arguments, workshop.check),
            MEASURE.name: lambda arguments: self._judged(MEASURE.name, arguments, workshop.measure),
            INSPECT.name: self._inspect,
            SUBMIT.name: self._submit,
        }
        tools = [READ_DEFINITION, BUILD, CHECK, MEASURE, INSPECT, SUBMIT]
        if memory is not None:
            self._handlers[SEARCH.name] = self._search
            tools.insert(-1, SEARCH)
        self.tools = tuple(tools)

    @property
    def best(self) -> Candidate | None:
        """The fastest new program that was found correct."""
        return self._best[1] if self._best is not None else None

    def call(self, call: ToolCall) -> str:
        """What a tool says, bounded in size; a mistake of the model's is explained.

        Raises:
            GristmillError: the workshop itself failed.
        """
        name = call.name.rpartition(".")[2]
        if name not in self._handlers:
            return f"There is no tool {call.name[:60]!r}; there are {', '.join(tool.name for tool in self.tools)}."
        schema = next(tool.parameters for tool in self.tools if tool.name == name)
        try:
            return clipped(self._handlers[name](_arguments(call, schema)), MAX_RESULT)
        except ProgramError as error:
            return f"{name} did nothing: {error}"

    def _build(self, arguments: dict[str, Any]) -> str:
        name, candidate = self._program(arguments)
        return self._once(BUILD.name, candidate, (), lambda: self._built(name, self._workshop.build(candidate)))

    def _built(self, name: str, failure: Verdict | None) -> str:
        return f"{name} builds." if failure is None else f"{name} does not build.\n{self._verdict(failure)}"

    def _judged(
        self,
        tool: str,
        arguments: dict[str, Any],
        judge: Callable[[Candidate, Sequence[Workload]], Verdict],
    ) -> str:
        name, candidate = self._program(arguments)
        workloads = self._assignment.workloads
        numbers = tuple(dict.fromkeys(map(int, arguments.get("workloads") or range(1, len(workloads) + 1))))
        if max(numbers) > len(workloads):
            raise ProgramError(f"there is no workload {max(numbers)}; they are numbered from 1 to {len(workloads)}")

        def ask() -> str:
            verdict = judge(candidate, [workloads[number - 1] for number in numbers])
            if (
                verdict.ratio is not None
                and name not in self._old
                and (not self._best or verdict.ratio > self._best[0])
            ):
                self._best = verdict.ratio, candidate
            return f"{name} was judged.\n{self._verdict(verdict)}"

        return self._once(tool, candidate, numbers, ask)

    def _inspect(self, arguments: dict[str, Any]) -> str:
        name, candidate = self._program(arguments)

        def ask() -> str:
            failure = self._workshop.build(candidate)
            if failure is not None:
                return self._built(name, failure)
            text = self._workshop.assembly(candidate)
            return (
                f"{name}\n{fenced('assembly', clipped(text, MAX_RESULT - 500))}"
                if text
                else f"{name}: nothing to show."
            )

        return self._once(INSPECT.name, candidate, (), ask)

    def _search(self, arguments: dict[str, Any]) -> str:
        assert self._memory is not None
        lines = self._memory.search(arguments["query"], MAX_FOUND)
        return fenced("memory", self._redact("\n".join(lines))) if lines else "Nothing is known of that."

    def _submit(self, arguments: dict[str, Any]) -> str:
        name, candidate = self._program(arguments)
        if name in self._old:
            self.handed_in_known = True
            known = fenced("verdict", self._redact(self._proposals.what_is_known(candidate)))
            raise ProgramError(f"{name} was proposed before; submit another\n{known}")
        self.submitted = candidate
        return f"{name} was handed in."

    def _program(self, arguments: dict[str, Any]) -> tuple[str, Candidate]:
        """The program of a call and its short name."""
        given, files = arguments.get("program"), arguments.get("files")
        if (given is None) == (files is None):
            raise ProgramError("expected either files or the name of an earlier program")
        if given is not None:
            if given not in self._programs:
                raise ProgramError(
                    f"there is no program {given[:40]!r}; there are {', '.join(self._programs) or 'none'}"
                )
            return given, self._programs[given]
        header = {name: value for name, value in arguments.items() if name in HEADER_PROPERTIES}
        candidate = candidate_of(Program(files or {}, header), self._assignment, self._origin)
        for name, known in self._programs.items():
            if known.digest == candidate.digest:
                return name, known
        name = f"p{len(self._programs) + 1}"
        self._programs[name] = candidate
        if self._proposals.is_known(candidate):
            self._old.add(name)
        return name, candidate

    def _once(self, tool: str, candidate: Candidate, numbers: tuple[int, ...], ask: Callable[[], str]) -> str:
        """A question that was answered before costs the judge no time."""
        key = (tool, candidate.digest, numbers)
        if key not in self._answers:
            self._answers[key] = ask()
        return self._answers[key]

    def _verdict(self, verdict: Verdict) -> str:
        return prompt.verdict_text(verdict, self._redact)


def _arguments(call: ToolCall, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments as its schema has them.

    Raises:
        ProgramError: they are not.
    """
    if len(call.arguments) > MAX_ARGUMENTS:
        raise ProgramError(f"the arguments have {len(call.arguments)} characters; expected at most {MAX_ARGUMENTS}")
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"its arguments are no JSON ({str(error)[:120]}); expected one object") from None
    complaints = schema_complaints(value, schema)
    if complaints:
        names = ", ".join(schema["properties"]) or "no arguments"
        raise ProgramError(f"its arguments are not as expected: {complaints}; expected {names}")
    arguments: dict[str, Any] = value
    return arguments
