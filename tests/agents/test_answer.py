"""Whatever a model answers becomes candidates or feedback: answers as models write them, and random ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.answer import MAX_CHARACTERS, MAX_PROGRAMS, Reading, read
from agents.brief import Parent
from agents.chat import Finish
from agents.episode import Outcome
from gristmill import records
from gristmill.domain import AxisRange, Layout
from kernels.candidate import Candidate
from tests.agents.conversation_world import KERNEL, ORIGIN, as_answer, assignment_for, brief_for, numbered, verdict_on

ANSWERS = sorted((Path(__file__).parent / "answers").glob("*.txt"))
ASSIGNMENT = assignment_for()


@dataclass(frozen=True)
class Written:
    """An answer of the corpus and what is expected of it."""

    expected: dict[str, str]
    text: str

    @classmethod
    def load(cls, path: Path) -> Written:
        head, _, text = path.read_bytes().decode().partition("===\n")
        return cls(dict(line.split(": ", 1) for line in head.splitlines()), text)


def reading_of(text: str, finish: Finish = Finish.DONE) -> Reading:
    return read(text, finish, ASSIGNMENT, ORIGIN)


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    written = Written.load(path)
    reading = reading_of(written.text, Finish(written.expected.get("finish", "done")))
    assert reading.outcome is Outcome(written.expected["expect"]), reading.feedback
    assert len(reading.candidates) == int(written.expected.get("programs", 0))
    assert written.expected.get("hint", "") in "\n".join(reading.feedback)
    for candidate in reading.candidates:
        assert set(written.expected.get("files", "").split() or candidate.files) == set(candidate.files)
        assert "```" not in "".join(candidate.files.values())
    assert reading.candidates or reading.feedback


def test_the_corpus_has_every_way_to_fail() -> None:
    expected = {Written.load(path).expected["expect"] for path in ANSWERS}
    assert expected == {"submitted", "no_code", "truncated", "refused", "empty", "malformed"}


def test_a_program_comes_out_as_it_went_in() -> None:
    (candidate,) = reading_of(as_answer(KERNEL)).candidates
    assert candidate.files == {"main.cpp": KERNEL}
    assert candidate.domain.layout is Layout.INNER_CONTIGUOUS
    assert candidate.domain.ranges == ()
    assert candidate.origin.agent == ORIGIN.agent


def test_the_last_program_comes_first() -> None:
    text = as_answer(numbered(1)) + as_answer(numbered(2))
    assert [c.files["main.cpp"].partition("\n")[0] for c in reading_of(text).candidates] == ["// 2", "// 1"]


def test_each_alternative_gets_its_own_header_file() -> None:
    text = Written.load(Path(__file__).parent / "answers" / "each_alternative_has_its_header.txt").text
    second, first = reading_of(text).candidates
    assert "second" in second.files["rows.h"]
    assert "first" in first.files["rows.h"]


def test_too_many_programs_are_said_to_be() -> None:
    reading = reading_of("".join(as_answer(numbered(number)) for number in range(MAX_PROGRAMS + 3)))
    assert len(reading.candidates) == MAX_PROGRAMS
    assert "7 programs; the last 4 were taken" in reading.feedback[-1]


def test_a_header_is_followed() -> None:
    header = (
        '{"domain": {"tokens": {"low": 1, "high": 64}, "hidden": {"low": 64, "high": 8192, "multiple": 64}}, '
        '"layout": "contiguous", "compile_flags": ["-ffast-math", "-O3", "-ffast-math"], "pattern": "two-passes", '
        '"parameters": {"UNROLL": [8, 1]}}'
    )
    (candidate,) = reading_of(as_answer(f"constexpr int UNROLL = 4;\n{KERNEL}", header)).candidates
    assert candidate.domain.ranges == (AxisRange("tokens", 1, 64), AxisRange("hidden", 64, 8192, 64))
    assert candidate.domain.layout is Layout.CONTIGUOUS
    assert candidate.compile_flags == ("-ffast-math",)
    assert candidate.origin.pattern == "two-passes"
    assert candidate.origin.parameters == {"UNROLL": "4"}
    assert candidate.files["main.cpp"].startswith("constexpr int UNROLL = 4;  // tune: 1, 4, 8\n")


def test_numbers_are_whole_however_they_are_written() -> None:
    header = (
        '{"domain": {"tokens": {"low": 1.0, "high": 64.0}}, "parameters": {"A": [2.0]}, "pattern": "a\\ud800\\n b"}'
    )
    (candidate,) = reading_of(as_answer(f"constexpr int A = 1;\n{KERNEL}", header)).candidates
    assert "tune: 1, 2\n" in candidate.files["main.cpp"]
    assert candidate.origin.pattern == "a? b"
    assert records.parse(Candidate, records.canonical_json(candidate)) == candidate


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ('{"domain": []}', "domain"),
        ('{"domain": {"tokens": {"low": -1, "high": 4}}}', "minimum"),
        ('{"domain": {"tokens": {"low": 9, "high": 4}}}', "holds no extent"),
        ('{"domain": {"tokens": [1, 4]}}', "domain.tokens"),
        ('{"needs_setup": "yes"}', "needs_setup"),
        ('{"needs_setup": true}', "gm_setup"),
        ('{"layout": "dense"}', "layout"),
        ('{"parameters": {"A": ["x"]}}', "parameters.A"),
        ('{"pattern": "x",}', "cannot be read"),
        ('{"domain": {"tokens": {"low": 1, "high": 1e400}}}', "domain"),
        ('{"domain": ' + "[" * 100_000, "cannot be read"),
        ('["domain"]', "header"),
        ('{"compile_flags": ' + "[" * 900 + "]" * 900 + "}", "header"),
        ('{"compile_flags": [' + "1," * 50_000 + "1]}", "header"),
        ('{"domain": {"\\ud800": {"low": 1, "high": 2}}}', "no axis"),
    ],
)
def test_bad_headers_are_explained(header: str, hint: str) -> None:
    reading = reading_of(as_answer(KERNEL, header))
    assert reading.outcome is Outcome.MALFORMED
    assert hint in "\n".join(reading.feedback)


def test_fields_that_nobody_asked_for_do_no_harm() -> None:
    header = '{"pattern": "two-passes", "description": "fast", "expected_speedup": 2.5}'
    assert reading_of(as_answer(KERNEL, header)).candidates[0].origin.pattern == "two-passes"
    assert reading_of(as_answer(KERNEL, '{"tokens": 4, "hidden": 512}')).outcome is Outcome.SUBMITTED


def test_focus_is_claimed_where_nothing_is_said() -> None:
    focus = AxisRange("tokens", 1, 8)
    reading = read(as_answer(KERNEL), Finish.DONE, assignment_for(brief_for(focus=focus)), ORIGIN)
    assert reading.candidates[0].domain.ranges == (focus,)


def test_files_of_a_parent_need_not_be_repeated() -> None:
    (parent,) = reading_of(
        as_answer(f'#include "rows.h"\n{KERNEL}') + '```cpp rows.h\n#pragma once\n#include "lanes.h"\n```\n'
        "```cpp lanes.h\n#pragma once\n```\n```cpp unused.h\n#pragma once\n```\n"
    ).candidates
    assert set(parent.files) == {"main.cpp", "rows.h", "lanes.h"}
    assignment = assignment_for(brief_for(parents=(Parent(parent, verdict_on(parent)),)))
    child = read(as_answer(f'#include "rows.h"\n// mine\n{KERNEL}'), Finish.LENGTH, assignment, ORIGIN).candidates[0]
    assert set(child.files) == {"main.cpp", "rows.h", "lanes.h"}
    assert child.digest != parent.digest


def test_who_includes_a_parents_files_claims_no_more_than_it() -> None:
    claimed = AxisRange("tokens", 1, 16)
    (parent,) = reading_of(
        as_answer(f'#include "rows.h"\n{KERNEL}', '{"domain": {"tokens": {"low": 1, "high": 16}}}')
        + "```cpp rows.h\n#pragma once\n```\n"
    ).candidates
    assignment = assignment_for(brief_for(parents=(Parent(parent, verdict_on(parent)),)))
    for kernel, ranges in ((f'// mine\n#include "rows.h"\n{KERNEL}', (claimed,)), (f"// mine\n{KERNEL}", ())):
        assert read(as_answer(kernel), Finish.DONE, assignment, ORIGIN).candidates[0].domain.ranges == ranges


@pytest.mark.parametrize("character", ["\0", "\ud800", "\x1b", "\u2066"])
def test_what_is_not_text_is_refused_in_programs_alone(character: str) -> None:
    bad = reading_of(as_answer(f"// {character}\n{KERNEL}"))
    assert bad.outcome is Outcome.MALFORMED
    assert f"U+{ord(character):04X}" in bad.feedback[0]
    assert reading_of(f"{character}\n{as_answer(KERNEL)}{character}").outcome is Outcome.SUBMITTED


def test_a_megabyte_is_refused_at_once() -> None:
    reading = reading_of(as_answer(KERNEL + "//\n" * 400_000))
    assert reading.outcome is Outcome.MALFORMED
    assert str(MAX_CHARACTERS) in reading.feedback[0]


@pytest.mark.parametrize(
    "piece",
    ["```", "~~~\n", "<think>", "`", "* ", "#", "```cpp main.cpp\n", "{", "(", "gm_run(", "def run(", "[", "\\", "a"],
)
def test_repetition_costs_no_time(piece: str) -> None:
    """Expressions that backtrack would not come back from this within the test's time."""
    reading = reading_of(piece * (MAX_CHARACTERS // len(piece)))
    assert reading.outcome is not Outcome.SUBMITTED


PIECES = st.sampled_from(
    [
        "```cpp main.cpp\n",
        "```",
        "```\n",
        "~~~\n",
        "```json\n",
        "```python\n",
        "\n",
        KERNEL,
        KERNEL[:300],
        "**main.cpp**\n",
        '{"pattern": "x"}\n',
        '{"domain": 3}\n',
        "def run(x, weight, eps, out):\n    out.copy_(x)\n",
        "<think>",
        "</think>",
        '#include "rows.h"\n',
        "```cpp rows.h\n",
        "I cannot",
        "\ud800",
        "\0",
        "\r\n",
        "\u2028",
        "gm_run(",
        "}",
        "```markdown\n",
    ]
)


@given(st.lists(PIECES | st.text(max_size=20), max_size=14), st.sampled_from(Finish))
@settings(max_examples=300, deadline=None)
def test_any_answer_is_read(pieces: list[str], finish: Finish) -> None:
    reading = reading_of("".join(pieces), finish)
    assert (reading.outcome is Outcome.SUBMITTED) == bool(reading.candidates)
    assert reading.candidates or reading.feedback
    assert len({candidate.digest for candidate in reading.candidates}) == len(reading.candidates)
    for candidate in reading.candidates:
        assert candidate.origin.episode == ORIGIN.episode
        assert any(candidate.domain.admits(workload) for workload in ASSIGNMENT.brief.workloads)
    if finish is Finish.REFUSED:
        assert reading.outcome is Outcome.REFUSED


@given(st.text(max_size=200), st.text(max_size=200), st.sampled_from(["```", "~~~", "````"]))
@settings(deadline=None)
def test_prose_around_a_program_does_not_change_it(before: str, after: str, fence: str) -> None:
    marks = ("`", "~", "<think", "</", "gm_run", "def run")
    if any(mark in text for text in (before, after) for mark in marks):
        return
    reading = reading_of(f"{before}\n{fence}cpp main.cpp\n{KERNEL}{fence}\n{after}")
    assert [candidate.files for candidate in reading.candidates] == [{"main.cpp": KERNEL}]


@given(st.integers(0, len(KERNEL) - 2))
@settings(deadline=None)
def test_a_program_cut_anywhere_is_no_program(length: int) -> None:
    reading = reading_of(f"```cpp main.cpp\n{KERNEL[:length]}", Finish.LENGTH)
    assert reading.outcome is Outcome.TRUNCATED
    assert "shorter" in reading.feedback[0]


@given(st.sampled_from(ANSWERS), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_answers_are_read(path: Path, data: st.DataObject) -> None:
    """Pieces of the corpus, cut, doubled and with lines from one another."""
    lines = Written.load(path).text.split("\n")
    others = Written.load(data.draw(st.sampled_from(ANSWERS))).text.split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(lines))), data.draw(st.integers(0, 6))
        piece = others[data.draw(st.integers(0, len(others))) :][:length]
        lines[at : at + data.draw(st.integers(0, 6))] = piece
    reading = reading_of("\n".join(lines), data.draw(st.sampled_from([Finish.DONE, Finish.LENGTH])))
    assert (reading.outcome is Outcome.SUBMITTED) == bool(reading.candidates)
    for candidate in reading.candidates:
        assert records.parse(Candidate, records.canonical_json(candidate)) == candidate
