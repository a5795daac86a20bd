"""Ctrl-C reaches long work even where something swallowed it the first time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli import interrupt
from cli.home import ROOT
from cli.watch import Watch
from gristmill import records
from tests.tasks.world import PEAKS


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


ENDLESS = """#include "gristmill_kernel.h"
GM_EXPORT int32_t gm_run(const gm_call *call) {
    for (volatile int64_t forever = 0;; forever++) {}
}
"""
PATIENCE_S = 60.0
BUSY_TICKS = 8
"""Of user time: more than a runner needs to come up."""


def descendants(process_id: int) -> set[int]:
    """Of a process: all that it started, and all that these started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found: set[int] = set()
    waiting = [process_id]
    while waiting:
        new = children.get(waiting.pop(), [])
        found.update(new)
        waiting += new
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def computing(process_id: int) -> bool:
    """Whether a runner below a process has computed for a while: its candidate does not return."""
    return any(name == "runner" and ticks > BUSY_TICKS for name, ticks in map(spent, descendants(process_id)))


def spent(process_id: int) -> tuple[str, int]:
    """Name and user time of a process, in ticks."""
    try:
        head, _, tail = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")
    except OSError:
        return "", 0
    return head.partition("(")[2], int(tail.split()[11])


def test_an_interrupted_judgement_says_so_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """Only the command gets the signal: to end what it has started is its own business."""
    folder, home = tmp_path / "temporary", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (home / "peaks.json").write_bytes(records.canonical_json(PEAKS))
    (tmp_path / "endless.cpp").write_text(ENDLESS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILL_")}
    started = subprocess.Popen(
        [sys.executable, "-m", "cli", "judge", str(tmp_path / "endless.cpp"), "--operator", "softmax"],
        cwd=ROOT,
        env={**kept, "MILL_HOME": str(home), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: computing(started.pid) or started.poll() is not None)
        below = descendants(started.pid)
        os.kill(started.pid, signal.SIGINT)
        printed, said = started.communicate(timeout=PATIENCE_S)
    finally:
        started.kill()
    assert (started.returncode, printed, said) == (130, "", "mill: interrupted\n")
    assert below
    wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in below))
    assert not list(folder.iterdir())
