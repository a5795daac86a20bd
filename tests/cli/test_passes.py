"""`./mill test`: which pytest runs follow one another, which code they end in, and what Ctrl-C waits for."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli import test as command
from cli.home import ROOT
from cli.test import ALONE, CALCULATED, passes

PATIENCE_S = 60.0


@pytest.mark.parametrize("rest", [(), ("-q",), ("-vv", "--durations=40", "-pno:cacheprovider")])
def test_the_whole_suite_is_one_pass_side_by_side_and_one_of_what_must_be_alone(rest: tuple[str, ...]) -> None:
    beside, alone = passes(rest, workers=2)
    assert beside[: len(rest)] == alone[: len(rest)] == rest
    assert beside[beside.index("-n") + 1] == "2"
    by_themselves = alone[len(rest) :]
    assert [argument.removeprefix("--ignore=") for argument in beside if "--ignore" in argument] == [*by_themselves]
    assert set(ALONE) - {"tests/harness"} < set(by_themselves) and not set(CALCULATED) & {
        "tests/harness",
        *by_themselves,
    }
    harness = {f"tests/harness/{file.name}" for file in (ROOT / "tests" / "harness").glob("test_*.py")}
    assert harness == {path for path in (*by_themselves, *CALCULATED) if path.startswith("tests/harness/")}


@pytest.mark.parametrize(
    "rest", [("tests/cli",), ("-k", "rollback"), ("-x",), ("-qx",), ("-m", "gpu"), ("--lf",), ("-q", "--pdb")]
)
def test_a_selection_is_one_pass_as_it_stands(rest: tuple[str, ...]) -> None:
    assert passes(rest, workers=2) == [rest]


def test_one_core_has_one_pass() -> None:
    assert passes(("-q",), workers=1) == [("-q",)]


def test_what_must_be_alone_is_there() -> None:
    assert [path for path in (*ALONE, *CALCULATED) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((0, 1), 1), ((3, 1), 3)], ids=repr)
def test_every_pass_is_made_and_the_first_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, codes: Sequence[int], code: int
) -> None:
    made: list[list[str]] = []

    class Ended:
        def __init__(self, arguments: list[str], **_: Any) -> None:
            made.append(arguments)

        def wait(self) -> int:
            return codes[len(made) - 1]

    monkeypatch.setattr(command.subprocess, "Popen", Ended)
    monkeypatch.setattr(command.os, "sched_getaffinity", lambda _: {0, 1})
    assert command.run(argparse.Namespace(rest=())) == code
    assert len(made) == 2


INTERRUPTED = """
import pathlib, time, pytest

@pytest.fixture(scope="session")
def made():
    here = pathlib.Path(__file__).with_name("made")
    here.touch()
    yield
    time.sleep(1)
    here.unlink()

def test_endless(made):
    time.sleep(600)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_ctrl_c_waits_until_pytest_has_taken_down_what_was_set_up(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """A terminal tells all processes of the group."""
    (tmp_path / "test_endless.py").write_text(INTERRUPTED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    made = tmp_path / "made"
    started = subprocess.Popen(
        [*(sys.executable, "-m", "cli", "test", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), *workers)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DEBUG_TEMPROOT": str(tmp_path)},  # or it clears away what earlier suites have left
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not made.exists():
            assert started.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(started.pid, signal.SIGINT)
        _, said = started.communicate(timeout=PATIENCE_S)
    finally:
        started.kill()
    assert (started.returncode, said) == (130, b"mill: interrupted\n")
    assert not made.exists()
