"""Who runs where, and before whom, while something is measured."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import scheduling

SPIN = "sum(range(300_000))"
KEEPS_THREADS = f"""
import threading, time
threads = [threading.Thread(target=lambda: ({SPIN}, time.sleep(60)), daemon=True) for _ in range(2)]
[thread.start() for thread in threads]
{SPIN}
print("ready", flush=True); time.sleep(60)
"""
STARTS_THREADS = f"""
import threading, time
for _ in range(20):
    thread = threading.Thread(target=lambda: {SPIN}); thread.start(); thread.join()
print("ready", flush=True); time.sleep(60)
"""
NEVER_SLEEPS = """
import threading, time
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True); time.sleep(60)
"""
needs_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing to choose")


@contextlib.contextmanager
def process(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield started.pid
        finally:
            started.kill()


def tasks(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


@needs_cores
def test_both_run_on_one_core_which_changes_with_every_second_pair():
    cores = os.sched_getaffinity(0)
    with process(KEEPS_THREADS) as one, process(KEEPS_THREADS) as other:
        seen = []
        with scheduling.on_the_same_core([one, other], random.Random(1)) as move:
            for _ in range(24):
                move()
                assert os.sched_getaffinity(one) == os.sched_getaffinity(other)
                seen.append(os.sched_getaffinity(one))
            free = [task for task in tasks(one) if task != one]
            assert free and all(os.sched_getaffinity(task) == cores for task in free)
        assert all(len(place) == 1 for place in seen) and seen[::2] == seen[1::2]
        assert set.union(*seen) == cores
        assert os.sched_getaffinity(one) == os.sched_getaffinity(other) == cores


def test_who_starts_threads_for_each_call_is_left_alone():
    with process(STARTS_THREADS) as starter, process(KEEPS_THREADS) as keeper:
        assert scheduling.starts_threads(starter) and not scheduling.starts_threads(keeper)
        before = os.sched_getaffinity(keeper)
        with scheduling.on_the_same_core([keeper, starter], random.Random(1)) as move:
            move()
            assert os.sched_getaffinity(keeper) == before


@needs_cores
def test_a_process_that_ends_meanwhile_does_no_harm():
    with process(KEEPS_THREADS) as ended:
        pass
    assert scheduling.starts_threads(ended)
    with process(KEEPS_THREADS) as one, process(KEEPS_THREADS) as other:
        with scheduling.on_the_same_core([one, other], random.Random(1)) as move:
            os.kill(other, 9)
            move()
        assert os.sched_getaffinity(one) == os.sched_getaffinity(0)


def test_priority_ends_with_the_measurement():
    with scheduling.measuring_itself() as granted:
        inside = os.sched_getscheduler(0)
    assert (inside != os.SCHED_OTHER) == granted
    assert all(os.sched_getscheduler(task) == os.SCHED_OTHER for task in tasks(os.getpid()))


def test_a_thread_that_never_sleeps_always_wants_a_core():
    """Whether it gets one or not: the host is busy when the tests run."""
    with process(NEVER_SLEEPS) as restless:
        assert all(scheduling.wants_a_core(restless) for _ in range(200))
    with process(KEEPS_THREADS) as calm:
        assert any(not scheduling.wants_a_core(calm) or time.sleep(0.01) for _ in range(500))
    with pytest.raises(FileNotFoundError):
        scheduling.wants_a_core(2**22 + 1)
