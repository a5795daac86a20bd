"""The hostile benchmark: its census sees what is left, and its rows say so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import hostile
from benchmarks.census import Census, Enumerator
from benchmarks.figures import Outcome
from benchmarks.hostile import Course, figures, growth
from harness.sandbox import Confinement, Zygote
from harness.static_rules import refusal
from kernels.verdict import Status

NOTHING = Census(0, 0, 0, 0, 0)


def course(**changes) -> Course:
    made = Course(
        deeds=["hangs"] * 40,
        statuses=[Status.TIMED_OUT] * 40,
        elapsed_s=[0.06] * 40,
        resident_bytes=[300 << 20] * 40,
        honest=Status.SLOWER,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_census_sees_what_is_left(tmp_path):
    enumerator = Enumerator(tmp_path)
    before = enumerator.count()
    assert enumerator.count() - before == NOTHING
    held = os.memfd_create("held")
    opened = os.open("/dev/null", os.O_RDONLY)
    (tmp_path / "left").write_text("text")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert enumerator.count() - before == Census(1, 2, 1, 1, 0)
    assert enumerator.new_files == {tmp_path / "left"}
    child.kill()
    child.wait()
    os.close(held)
    os.close(opened)
    (tmp_path / "left").unlink()
    assert enumerator.count() - before == NOTHING


def test_a_census_sees_sandboxed_processes_and_their_groups(tmp_path):
    enumerator = Enumerator(tmp_path)
    before = enumerator.count()
    with Zygote() as zygote:
        process = zygote.start(Confinement(), argv=("/bin/sleep", "60"))
        process.wait_ready()
        there = enumerator.count() - before
        process.close()
    assert there.processes == 2
    assert there.groups > 0 or "memory group" not in process.isolation
    assert enumerator.count() - before == NOTHING


@pytest.mark.parametrize(
    ("left", "changes", "outcome"),
    [
        (NOTHING, {}, Outcome.MET),
        (Census(1, 0, 0, 0, 0), {}, Outcome.MISSED),
        (Census(-1, 0, 0, 0, 1), {}, Outcome.MISSED),
        (NOTHING, {"honest": Status.CRASHED}, Outcome.MISSED),
        (NOTHING, {"statuses": [Status.TIMED_OUT] * 39 + [Status.FASTER]}, Outcome.MISSED),
    ],
)
def test_the_row_says_whether_anything_was_left(left, changes, outcome):
    assert figures(course(**changes), left)[0].verdict is outcome


def test_memory_that_grows_is_not_flat():
    flat, grown = [100] * 100, [100 + number for number in range(100)]
    assert growth(flat) == (1.0, (1.0, 1.0))
    ratio, (low, high) = growth(grown)
    assert 1.6 < low <= ratio <= high < 1.8
    assert figures(course(resident_bytes=grown), NOTHING)[1].verdict is Outcome.MISSED


def test_every_deed_reaches_a_runner():
    """A deed that a static rule refused would prove nothing."""
    made = [hostile.cpp(hostile.PROLOGUE + hostile.entry(text)) for text in hostile.DEEDS.values()]
    made += [hostile.python(text) for text in hostile.PYTHON_DEEDS.values()]
    assert [refusal(one) for one in made] == [None] * len(made)
    for one in made[len(hostile.DEEDS) :]:
        compile(one.files["main.py"], "main.py", "exec")
