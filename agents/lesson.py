"""Lessons: what verdicts teach, one line each, and how they are ranked and told.

The text comes from the verdict's evidence by fixed rules, so the same verdict teaches the same. What may hold words of
a language model (a compiler quotes its program) keeps that model's name as its source; it is told between marks, as
something that somebody claims.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from agents.bandit import nearness
from agents.memory import Lesson
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict, WorkloadTiming

VERDICT = "verdict"
"""Source of the lessons that can be trusted."""
MAX_TEXT = 240
MAX_TOPIC = 100
MAX_NAME = 60
"""Of a pattern or a model."""
HALF_LIFE_MS = 90 * 86_400_000.0
"""After so long without being learned again a lesson counts half."""
NEAR_ROOFLINE = 0.8
COMPILER_ERRORS: Mapping[str, str] = {
    "was not declared": "undeclared name",
    "has not been declared": "undeclared name",
    "does not name a type": "unknown type",
    "no matching function": "no matching function",
    "has no member": "no such member",
    "cannot convert": "wrong type",
    "invalid conversion": "wrong type",
    "incompatible": "wrong type",
    "redefinition": "defined twice",
    "multiple definition": "defined twice",
    "undefined reference": "undefined reference",
    "undefined symbol": "undefined reference",
    "inlining failed": "instruction that the target lacks",
    "target specific option mismatch": "instruction that the target lacks",
    "static assertion failed": "static assertion",
    "expected": "syntax",
    "No such file": "missing header",
}
"""Words in a compiler's message, and the class of the error; the first that fits names it."""
_QUOTED = re.compile(r"['\"\u2018\u201c`][^'\"\u2018-\u201d`]*['\"\u2019\u201d`]")
_PLACE = re.compile(r"^[\w./-]+:\d+(:\d+)?: *")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]{0,23}=-?\d{1,9}")
_UNSAFE = re.compile(r"[^ -~]|[<>`]")


@dataclass(frozen=True)
class _Finding:
    """What one rule read from a verdict."""

    topic: str
    text: str
    worth: float
    quoting: bool = False
    """Whether the text holds words that the candidate's author chose."""


def lessons_of(candidate: Candidate, verdict: Verdict, hardware: str, now_ms: int) -> tuple[Lesson, ...]:
    """What a verdict teaches, each lesson seen once."""
    author = candidate.origin.model
    return tuple(
        Lesson(
            operator=candidate.operator,
            hardware=hardware,
            pattern=line(candidate.origin.pattern, MAX_NAME),
            topic=line(found.topic, MAX_TOPIC),
            text=line(found.text),
            source=author if author and found.quoting else VERDICT,
            worth=found.worth,
            seen=1,
            last_ms=now_ms,
        )
        for found in _findings(candidate, verdict)
    )


def merged(one: Lesson, other: Lesson) -> Lesson:
    """Two tellings of the same: the text of the one worth more, whichever came first."""
    kept = max((one, other), key=lambda lesson: (lesson.worth, lesson.text, lesson.source))
    return replace(kept, seen=one.seen + other.seen, last_ms=max(one.last_ms, other.last_ms))


def ranked(lessons: Iterable[Lesson], operator: str, hardware: str) -> list[Lesson]:
    """The most useful first: worth, how near in operator and hardware, how often seen, how fresh. The order does not
    depend on when it is asked for.
    """
    known = list(lessons)
    newest = max((lesson.last_ms for lesson in known), default=0)

    def use(lesson: Lesson) -> float:
        near = nearness(lesson.operator, lesson.hardware, operator, hardware)
        fresh: float = 0.5 ** ((newest - lesson.last_ms) / HALF_LIFE_MS)
        return lesson.worth * near * (1 + math.log2(max(1, lesson.seen)) / 4) * fresh

    return sorted(known, key=lambda lesson: (-use(lesson), lesson.key))


def told(lessons: Iterable[Lesson], operator: str, hardware: str, limit: int = 12) -> tuple[str, ...]:
    """Lines for a brief, the most useful first; no pattern gets more than a third of them while others have any."""
    return tuple(sentence(lesson, operator, hardware) for lesson in _mixed(ranked(lessons, operator, hardware), limit))


def sentence(lesson: Lesson, operator: str, hardware: str) -> str:
    """A lesson as one line. What is not from a verdict stands between `<<` and `>>`, which no text can hold."""
    text = (
        lesson.text
        if lesson.source == VERDICT
        else f"{line(lesson.source, MAX_NAME)} claims, unverified: <<{lesson.text}>>"
    )
    where = [lesson.operator] if lesson.operator != operator else []
    where += ["other hardware"] if lesson.hardware != hardware else []
    about = f"{lesson.pattern or 'no pattern'}{f' ({chr(44).join(where)})' if where else ''}"
    return f"{about}: {text}" + (f" (seen {lesson.seen} times)" if lesson.seen > 1 else "")


def line(text: str, limit: int = MAX_TEXT) -> str:
    """Text in one line of printable ASCII without marks that could end a quotation, cut to a length."""
    clean = " ".join(_UNSAFE.sub(" ", text).split())
    return clean if len(clean) <= limit else clean[: limit - 3].rstrip() + "..."


def compiler_error_class(message: str) -> str:
    """What kind of error a compiler's first line reports: one of a few, or `other`."""
    return next((name for words, name in COMPILER_ERRORS.items() if words in message), "other")


def _mixed(lessons: list[Lesson], limit: int) -> list[Lesson]:
    share = max(1, limit // 3)
    taken: dict[str, int] = {}
    first: list[Lesson] = []
    rest: list[Lesson] = []
    for lesson in lessons:
        taken[lesson.pattern] = taken.get(lesson.pattern, 0) + 1
        (first if taken[lesson.pattern] <= share else rest).append(lesson)
    return [*first, *rest][:limit]


def _findings(candidate: Candidate, verdict: Verdict) -> Iterator[_Finding]:
    if verdict.status is Status.BUILD_FAILED:
        yield _build(verdict)
    elif verdict.status is Status.INCORRECT:
        yield _wrong(verdict)
    elif verdict.timings:
        yield from _timed(candidate, verdict)
    elif verdict.status in (Status.REJECTED, Status.CRASHED, Status.TIMED_OUT, Status.CHEATED):
        word = verdict.status.value.replace("_", " ")
        worth = 0.8 if verdict.status is Status.CHEATED else 0.6
        yield _Finding(f"{word}: {_shape(verdict.reason)}", f"{word}: {verdict.reason}", worth, quoting=True)


def _build(verdict: Verdict) -> _Finding:
    message = _PLACE.sub("", (verdict.build_errors or verdict.reason).partition("\n")[0])
    kind = compiler_error_class(message)
    return _Finding(f"build: {kind}", f"does not build ({kind}): {message}", 0.5, quoting=True)


def _wrong(verdict: Verdict) -> _Finding:
    said = next((case.diagnosis for case in verdict.failing if case.diagnosis), "")
    if said:
        return _Finding(f"wrong: {_shape(said)}", f"wrong answers: {said}", 0.9)
    if not verdict.mismatches:
        return _Finding(f"wrong: {_shape(verdict.reason)}", f"wrong answers: {verdict.reason}", 0.6, quoting=True)
    worst = verdict.mismatches[0]
    where = f"{worst.output} is wrong ({worst.pattern})"
    smallest = verdict.failing[0] if verdict.failing else None
    sizes = _sizes(smallest.axes) + (f", {smallest.regime} values" if smallest else "") if smallest else worst.workload
    return _Finding(f"wrong: {where}", f"{where}, {worst.error_ratio} times the allowed error, at {sizes}", 0.7)


def _timed(candidate: Candidate, verdict: Verdict) -> Iterator[_Finding]:
    constants = _constants(candidate)
    report = verdict.object_report
    if report and report.spills and constants:
        text = f"{report.spills} vector registers spill in innermost loops with {constants}; {verdict.ratio or 0:.2f}x"
        yield _Finding("spills", text, 0.7)
    if report and report.hint and not verdict.won:
        yield _Finding(f"hint: {_shape(report.hint)}", f"slow: {report.hint}", 0.6)
    best = max(verdict.timings, key=lambda timing: (timing.ratio_low, timing.workload.label))
    if verdict.won and best.ratio_low > 1:
        worth = 1 - 0.5 / best.ratio_low
        yield _Finding(f"won: {_range(candidate)}", _win(best, constants), worth)
    elif not verdict.won and (verdict.ratio or 0) < 0.9:
        text = f"at most {best.ratio:.2f}x at {_sizes(best.workload.axes)}" + (
            f" with {constants}" if constants else ""
        )
        yield _Finding(f"lost: {_range(candidate)}", text, 0.3)
    nearest = max(verdict.timings, key=lambda timing: (timing.roofline_fraction, timing.workload.label))
    if nearest.roofline_fraction >= NEAR_ROOFLINE:
        text = (
            f"{nearest.roofline_fraction:.0%} of the roofline at {_sizes(nearest.workload.axes)}: little is left there"
        )
        yield _Finding(f"roofline: {_range(candidate)}", text, 0.8)


def _win(best: WorkloadTiming, constants: str) -> str:
    how = f" with {constants}" if constants else ""
    share = f"{best.roofline_fraction:.0%} of the roofline"
    return f"{best.ratio:.2f}x (at least {best.ratio_low:.2f}) at {_sizes(best.workload.axes)}{how}; {share}"


def _constants(candidate: Candidate) -> str:
    """Only what looks like constants, since a language model may have named them."""
    pairs = (f"{name}={value}" for name, value in sorted(candidate.origin.parameters.items()))
    return " ".join([pair for pair in pairs if _CONSTANT.fullmatch(pair)][:10])


def _range(candidate: Candidate) -> str:
    return candidate.domain.dtype + "".join(f" {r.name} {r.low}..{r.high}" for r in candidate.domain.ranges)


def _sizes(axes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={extent}" for name, extent in sorted(axes.items()))


def _shape(text: str) -> str:
    """A message without the names and numbers in it, so that the same mistake is the same topic."""
    return _NUMBER.sub("N", _QUOTED.sub("'...'", _PLACE.sub("", text)))
