"""From an assignment to what a model is told. The same assignment gives the same text.

What is the same for all briefs of an operator comes first, so that a provider can cache it. Sections have limits of
their own, and what was cut is said; should all of them together be too long, the least useful are left out by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence

from agents import instructions
from agents.assignment import MAIN_FILES, Assignment
from agents.brief import Parent
from agents.chat import Message, Role
from agents.patterns import catalogue as patterns
from agents.quotation import RULE, clipped, fenced
from gristmill.workload import ITEM_BYTES, TensorLayout, Workload
from kernels import catalogue, fusion_plan
from kernels.definition import Definition
from kernels.evidence import case_text, mismatch_text, object_text
from kernels.verdict import Status, Verdict

Redact = Callable[[str], str]
"""Takes secrets, host paths and names out of a text."""

MAX_CHARACTERS = 120_000
"""Of all messages together."""
MIN_CHARACTERS = 2_000
"""Of the user's message, however long the system's is."""
NOTE_CHARACTERS = 300
"""Kept free to say what was cut."""
MAX_SOURCE = 24_000
MAX_EVIDENCE = 6_000
MAX_PATTERN = 8_000
MAX_REFERENCE = 6_000
MAX_PARENTS = 3
MAX_WORKLOADS = 40
MAX_LESSONS = 12
MAX_FEEDBACK = 20
MAX_LINE = 400


def render(
    assignment: Assignment, redact: Redact, *, way: str = "", max_characters: int = MAX_CHARACTERS
) -> tuple[Message, ...]:
    """The system's and the user's message.

    Args:
        redact: applied to all that others wrote.
        way: how to work, where it is not by one answer; stands last.
        max_characters: of both together, for models with a short memory; the system's message is never cut.
    """
    system = "\n\n".join([instructions.text(assignment), RULE, *([way] if way else [])])
    sections = [(name, text) for name, text in _sections(assignment, redact) if text]
    user = _joined(sections, max(MIN_CHARACTERS, max_characters - len(system)))
    return Message(Role.SYSTEM, system), Message(Role.USER, user)


def definition_text(assignment: Assignment) -> str:
    """The operator, its tensors and reference, the workloads and the calling convention, without what was tried."""
    parts = [
        _operator(assignment),
        _reference(assignment.definition),
        _workloads(assignment),
        instructions.convention(assignment),
    ]
    return "\n\n".join(parts)


def verdict_text(verdict: Verdict, redact: Redact) -> str:
    """A verdict and all of its evidence that helps the next try, fenced."""
    lines = [f"{verdict.status.value}: {verdict.reason}", *_evidence(verdict)]
    return fenced("verdict", clipped(redact("\n".join(lines)), MAX_EVIDENCE))


def _joined(sections: Sequence[tuple[str, str]], limit: int) -> str:
    """Sections in order; of too many characters, the last ones but one go first. The last one is the task."""
    kept, dropped = list(sections), []
    limit -= NOTE_CHARACTERS
    while sum(len(text) + 2 for _, text in kept) > limit and len(kept) > 2:
        dropped.append(kept.pop(-2)[0])
    note = [f"[left out because there was too much to tell: {', '.join(reversed(dropped))}]"] if dropped else []
    return clipped("\n\n".join([*(text for _, text in kept[:-1]), *note, kept[-1][1]]), limit)


def _sections(assignment: Assignment, redact: Redact) -> Iterator[tuple[str, str]]:
    """By name, the most useful ones first."""
    brief = assignment.brief
    yield "operator", _operator(assignment)
    yield "reference", _reference(assignment.definition)
    yield "hardware", _hardware(assignment)
    yield "workloads", _workloads(assignment)
    for number, parent in enumerate(brief.parents[:MAX_PARENTS], 1):
        yield f"parent {number}", _parent(number, parent, redact)
    yield "pattern", _pattern(assignment, redact)
    yield "lessons", _notes("Lessons from earlier searches", brief.lessons[:MAX_LESSONS], redact)
    yield "course of the search", _notes("Tried lately, the newest last", brief.feedback[-MAX_FEEDBACK:], redact)
    yield "task", _task(assignment)


def _operator(assignment: Assignment) -> str:
    definition, dtype = assignment.definition, assignment.brief.dtype
    varying = {name for name in definition.axes if name not in definition.constant_axes}
    axes = [
        f"* {name}: {meaning} ({'varies from call to call' if name in varying else 'fixed by the model'})"
        for name, meaning in definition.axes.items()
    ]
    steps = [f"* {axis} is a multiple of {step}" for axis, step in definition.axis_steps.items()]
    inputs = [f"* {spec.name} [{', '.join(spec.dims)}] {spec.role.value}" for spec in definition.inputs]
    outputs = [f"* {spec.name} [{', '.join(spec.dims)}]" for spec in definition.outputs]
    scalars = [f"* {spec.name} (usually {spec.default:g})" for spec in definition.scalars]
    parts = [f"Operator {definition.name} in {dtype}\n{definition.summary}.", *_list("Axes", [*axes, *steps])]
    parts += [*_list("Inputs, in order", inputs), *_list("Scalars", scalars), *_list("Outputs, in order", outputs)]
    return "\n".join(parts)


def _list(title: str, lines: Sequence[str]) -> tuple[str, ...]:
    return (f"{title}:", *lines) if lines else ()


def _reference(definition: Definition) -> str:
    return f"Reference, computed in float64:\n```python\n{clipped(reference_source(definition), MAX_REFERENCE)}\n```"


@functools.cache
def _source_of(name: str) -> str:
    return inspect.getsource(catalogue.operator(name).reference).strip()


def reference_source(definition: Definition) -> str:
    """Source text of the reference; of a fused operator, that of each part and how they are joined."""
    if not fusion_plan.is_fused(definition.name):
        return inspect.getsource(definition.reference).strip()
    stages = fusion_plan.parse(definition.name)
    parts = dict.fromkeys(operator for stage in stages for operator in stage.operators)
    joined = f"# {definition.name}: outputs of a stage feed the next one's activations ('++': and are outputs too)"
    return "\n\n\n".join([joined, *(f"# {part}\n{_source_of(part)}" for part in parts)])


def _hardware(assignment: Assignment) -> str:
    brief, hardware = assignment.brief, assignment.brief.hardware
    features = " ".join(hardware.vector_flags) or "no vector extensions known"
    return (
        f"Hardware: {hardware.description}, {brief.cores} logical processors for a call, {features}. Measured peaks of "
        f"all together: {brief.bandwidth_gb_s:.1f} GB/s of memory, {brief.gflop_s:.0f} GFLOP/s in float32."
    )


def _workloads(assignment: Assignment) -> str:
    brief = assignment.brief
    best = {entry.workload: entry.ratio for entry in brief.best}
    ordered = assignment.workloads
    lines = [
        f"{number}. {_workload(assignment, workload, best.get(workload.label))}"
        for number, workload in enumerate(ordered[:MAX_WORKLOADS], 1)
    ]
    cut = [f"[{len(ordered) - MAX_WORKLOADS} more, of less weight]"] if len(ordered) > MAX_WORKLOADS else []
    title = (
        "Workloads, the weightiest first: share of the engine's time, what a call moves and computes, its time at the "
        "measured peaks, the best ratio so far. Inputs are dense where no steps are given."
    )
    return "\n".join([title, *lines, *cut])


def _workload(assignment: Assignment, workload: Workload, best: float | None) -> str:
    axes = " ".join(f"{name}={extent}" for name, extent in workload.axes.items())
    cost = assignment.definition.cost(workload.axes, ITEM_BYTES[workload.dtype])
    strided = [
        f"{spec.name} {_layout(layout)}"
        for spec, layout in zip(assignment.definition.inputs, workload.inputs, strict=True)
        if not layout.contiguous or layout.dtype != workload.dtype
    ]
    facts = [
        f"{assignment.brief.weight(workload):.1%}",
        f"{cost.bytes_moved / 1024:.1f} KiB and {cost.flops / 1e6:.3g} MFLOP",
        f"at best {assignment.floor_ns(workload) / 1e3:.3g} us",
        f"best so far {best:.2f}x" if best is not None else "nothing faster yet",
        *strided,
    ]
    return f"{axes}: {'; '.join(facts)}"


def _layout(layout: TensorLayout) -> str:
    shape, strides = ("x".join(map(str, numbers)) for numbers in (layout.shape, layout.strides))
    return f"{layout.dtype} {shape} in steps of {strides}"


def _parent(number: int, parent: Parent, redact: Redact) -> str:
    candidate = parent.candidate
    origin = candidate.origin
    about = [f"pattern {origin.pattern}"] if origin.pattern else []
    about += [f"{name}={value}" for name, value in sorted(origin.parameters.items())]
    about += [f"flags {' '.join(candidate.compile_flags)}"] if candidate.compile_flags else []
    ranges = [
        f"{r.name} {r.low}..{r.high}" + (f" in steps of {r.multiple}" if r.multiple > 1 else "")
        for r in candidate.domain.ranges
    ]
    about.append(f"claims {', '.join(ranges) or 'all extents'}, {candidate.domain.layout.value} inputs")
    files = [
        f"{name}:\n{fenced('source', clipped(redact(text), MAX_SOURCE))}"
        for name, text in sorted(
            candidate.files.items(), key=lambda item: (item[0] not in MAIN_FILES.values(), item[0])
        )
    ]
    told = fenced("origin", redact("; ".join(about)))
    return "\n".join([f"Parent {number}", told, *files, verdict_text(parent.verdict, redact)])


def _evidence(verdict: Verdict) -> Iterator[str]:
    for timing in sorted(verdict.timings, key=lambda timing: timing.ratio):
        axes = " ".join(f"{name}={extent}" for name, extent in timing.workload.axes.items())
        yield (
            f"{axes}: {timing.ratio:.2f}x the baseline ({timing.ratio_low:.2f} to {timing.ratio_high:.2f}), "
            f"{timing.candidate_ns / 1e3:.3g} us against {timing.baseline_ns / 1e3:.3g} us, "
            f"{timing.bandwidth_gb_s:.1f} GB/s, {timing.roofline_fraction:.0%} of the roofline"
        )
    for label, spent_ns in verdict.setup_ns.items():
        yield f"setup of {label}: {spent_ns / 1e3:.1f} us"
    if verdict.status is Status.BUILD_FAILED and verdict.build_errors:
        yield verdict.build_errors
    for mismatch in verdict.mismatches:
        yield mismatch_text(mismatch)
    for case in verdict.failing:
        yield case_text(case)
    if verdict.object_report is not None:
        yield object_text(verdict.object_report)


def _pattern(assignment: Assignment, redact: Redact) -> str:
    if not assignment.brief.pattern:
        return ""
    pattern = patterns.pattern(assignment.brief.pattern)
    text = pattern.text(assignment.toolchain.languages[0])
    return f"Technique to follow:\n{fenced('pattern', clipped(redact(text), MAX_PATTERN))}"


def _notes(title: str, lines: Sequence[str], redact: Redact) -> str:
    if not lines:
        return ""
    text = "\n".join(f"* {' '.join(clipped(line, MAX_LINE).split())}" for line in lines)
    return f"{title}:\n{fenced('notes', redact(text))}"


def _task(assignment: Assignment) -> str:
    brief = assignment.brief
    files = " or ".join(MAIN_FILES[language] for language in assignment.toolchain.languages)
    focus = brief.focus
    where = f" for {focus.name} from {focus.low} to {focus.high}" if focus is not None else ""
    what = "Improve on the first parent" if brief.parents else "Write a program of your own"
    technique = f", following the technique {brief.pattern}" if brief.pattern else ""
    return f"Task: {what}{where}{technique}. The main file is {files}."
