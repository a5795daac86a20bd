"""Ctrl-C reaches long work even where something swallowed it the first time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cli import interrupt
from cli.home import ROOT
from cli.watch import Watch


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
    interrupt.acknowledge()


def swallow_one_interrupt() -> None:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1)
    except BaseException:
        return


def test_a_swallowed_interrupt_is_raised_at_the_next_line_of_progress() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.install()
    swallow_one_interrupt()
    with pytest.raises(KeyboardInterrupt):
        Watch().say("search", "goes on")


def test_clean_up_may_report_and_other_threads_are_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.install()
    swallow_one_interrupt()
    problems: list[BaseException] = []

    def report() -> None:
        try:
            interrupt.check()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=report)
    thread.start()
    thread.join()
    assert not problems
    interrupt.acknowledge()
    Watch().say("demo", "interrupted")


def test_a_background_job_goes_on_ignoring_it() -> None:
    script = (
        "import signal; from cli import interrupt; interrupt.install(); signal.raise_signal(signal.SIGINT); print('on')"
    )
    ignoring = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        check=True,
    )
    assert ignoring.stdout == "on\n"
