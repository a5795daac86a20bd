"""A replay reads as a story, is short unless asked, and cannot command the terminal."""

from __future__ import annotations

from dataclasses import replace

from agents.chat import Answer, Finish, Message, Role, ToolCall, Usage
from agents.episode import Episode, ModelTurn, Outcome, Step, ToolTurn
from cli.replay_report import SHORT_CHARS, SHORT_LINES, render, render_search
from tasks.replay import Judged, Replay, SearchReplay

PATTERN = Judged(
    "s1",
    "a" * 64,
    "rms_norm",
    "float32",
    "pattern:rms_norm:rows",
    "rows",
    {"UNROLL": "4"},
    (),
    "",
    "",
    "slower",
    "",
    0.9,
)


def trials(count: int) -> tuple[Judged, ...]:
    """Of a pattern agent; every twentieth is the best so far."""
    found = []
    for number in range(count):
        status, ratio = ("faster", 1.0 + number) if number % 20 == 0 else ("slower", 0.5)
        found.append(replace(PATTERN, digest=f"{number:064x}", status=status, ratio=ratio))
    return tuple(found)


def episode(answer: str, result: str = "fine") -> Episode:
    call = ToolCall("c1", "build", '{"source": 1}')
    steps = (
        Step(
            model=ModelTurn(
                1000,
                (Message(Role.USER, "Please."),),
                Answer("m", answer, (call,), Finish.TOOLS, Usage(10, 5, 0.25), 2.0),
            )
        ),
        Step(tool=ToolTurn(3000, "build", call.arguments, result, 0.5)),
        Step(model=ModelTurn(3600, (), None, "connection lost")),
    )
    return Episode(
        "e1", "llm", "m", "op", "float32", "", "best", (), steps, Outcome.FAILED, "gone", (), Usage(10, 5, 0.25)
    )


def test_an_episode_is_told_step_by_step_with_times_and_costs() -> None:
    text = render(Replay("MLflow", None, (episode("Let me build."),), (), ()))
    positions = [
        text.index(part)
        for part in (
            "outcome   failed: gone",
            "10 + 5 tokens, 0.25 USD",
            "[  0.0 s] to the model",
            "Please.",
            "[  2.0 s] m after 2.0 s, 10 + 5 tokens, 0.25 USD, finished: tools",
            "Let me build.",
            "calls build (c1):",
            "[  2.0 s] build took 0.50 s:",
            "fine",
            "[  2.6 s] to the model",
            "no answer: connection lost",
        )
    ]
    assert positions == sorted(positions)


def test_long_texts_are_shortened_unless_all_is_asked_for() -> None:
    many, wide = "\n".join(f"line {number}" for number in range(100)), "x" * 10_000
    found = Replay("MLflow", None, (episode(many, wide),), (), ())
    short, full = render(found), render(found, full=True)
    assert f"line {SHORT_LINES - 1}" in short and f"line {SHORT_LINES}" not in short
    assert "88 more lines; --full shows them" in short
    assert "x" * SHORT_CHARS + "..." in short and "x" * (SHORT_CHARS + 1) not in short
    assert "line 99" in full and wide in full


def test_what_a_model_writes_cannot_command_the_terminal() -> None:
    text = render(
        Replay("MLflow", None, (episode("\x1b[2J\x1b]0;title\x07red \x9b31m", "\r\x08gone"),), (), ()), full=True
    )
    assert all(c.isprintable() or c == "\n" for c in text)


def test_a_course_shows_improvements_and_the_last_steps() -> None:
    course = trials(95)
    found = Replay("MLflow", course[-1], (), (), course)
    short, full = render(found), render(found, full=True)
    shown = [int(line.split()[0]) - 1 for line in short.splitlines() if line.strip()[:1].isdigit() and "UNROLL" in line]
    assert shown == [0, 20, 40, 60, 80, *range(85, 95)]
    assert "80 earlier trials without an improvement" in short
    assert sum("UNROLL" in line for line in full.splitlines()) == 96, "with the head"


def test_parents_are_named_whether_this_search_judged_them_or_not() -> None:
    known = replace(PATTERN, digest="b" * 64)
    child = replace(PATTERN, digest="c" * 64, parents=("b" * 64, "d" * 64), agent="llm", model="m", episode="e1")
    text = render(Replay("MLflow", child, (episode("ok"),), (known,), (child,)))
    assert "after     bbbbbbbbbbbb (pattern:rms_norm:rows: slower 0.90x)" in text
    assert "after     dddddddddddd (of another search)" in text


def test_a_search_is_a_line_per_agent_with_its_best_candidate_and_how_to_replay_one() -> None:
    model = replace(PATTERN, digest="b" * 64, agent="llm:m:0\x1b[2J", status="incorrect", ratio=None)
    tried = [replace(one, digest=f"{number:012x}" + "c" * 52) for number, one in enumerate(trials(41))]
    found = SearchReplay("MLflow", "s1", (*tried, model), {"rms_norm float32": 1.92})
    text = render_search(found)
    assert text.startswith("search s1: 42 candidates, 3 faster\n") and "\x1b" not in text
    gain, headers = text.splitlines()[1], text.splitlines()[3]
    assert gain == "rms_norm float32: 1.92x on all of its traffic, with the best candidate for each workload"
    assert "ratio where timed" in headers and "\nratio where timed: of one candidate" in text
    pattern, llm = (line.split() for line in text.splitlines()[4:] if ":" in line.split("  ")[0] and "float32" in line)
    assert pattern == ["pattern:rms_norm:rows", "rms_norm", "float32", "41", "3", "41.00", f"{40:012x}"]
    assert llm[-4:] == ["1", "0", "-", "b" * 12]
    assert text.splitlines()[-1] == (
        f"./mill replay {40:012x} shows how that one came about; --full lists every candidate"
    )
    whole = render_search(found, full=True)
    (best,) = (line.split() for line in whole.splitlines() if f"{40:012x}" in line and "replay" not in line)
    assert best == ["41", f"{40:012x}", "rms_norm", "float32", "pattern:rms_norm:rows", "faster", "41.00"]
    assert all(one.digest[:12] in whole for one in found.judged) and "--full" not in whole
