"""The spool in processes that real faults happen to: killed, out of disk, and with a wall clock that jumps."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gristmill.directory_store import DirectoryStore
from gristmill.store import read
from kernels import spool_fold

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import json, os, resource, sys, time
from pathlib import Path
from gristmill.directory_store import DirectoryStore
from gristmill.errors import SpoolError, StoreUnreachableError
from gristmill.sampler import Sample, Window
from gristmill.spool import Identity, Spool
from gristmill.workload import dense

class Calls:
    def flush(self):
        layouts = (dense((2, 4), "float32"),)
        return Window((Sample("softmax", "float32", {"rows": 2, "columns": 4}, layouts, 7, 0, 0),), 0)

class Store(DirectoryStore):
    away = False
    def put(self, key, content):
        if self.away:
            raise StoreUnreachableError("nothing answers")
        return super().put(key, content)

folder = Path(sys.argv[1])
store = Store(folder / "store")
spool = Spool(store, Identity("f", "m", "h"), Calls(), folder / "waiting")

def flush():
    try:
        found = spool.flush()
    except SpoolError as error:
        return {"error": str(error)}
    return {"keys": found.keys, "calls": found.calls, "waiting": found.waiting, "lost": found.lost}

def tell(**facts):
    print(json.dumps(facts), flush=True)
"""


def start(folder: Path, script: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER + script, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(folder: Path, script: str, environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    with start(folder, script, environ) as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


def folded(folder: Path) -> Any:
    store = DirectoryStore(folder / "store")
    return spool_fold.fold((key, read(store, key)) for key in store.list("spool/"))


@pytest.mark.parametrize("away", [True, False])
def test_a_killed_process_loses_what_it_had_not_flushed_and_nothing_else(tmp_path: Path, away: bool) -> None:
    """Killed between any two system calls of many flushes: what was told to be flushed arrives once, and whole."""
    script = f"""
store.away = {away}
while True:
    tell(**flush())
"""
    told = 0
    for seed in range(3):
        kill_after = random.Random(seed).randint(1, 25)
        with start(tmp_path, script) as process:
            assert process.stdout is not None
            for number, _ in enumerate(process.stdout, start=1):
                told += 1
                if number == kill_after:
                    process.send_signal(signal.SIGKILL)
    lines(tmp_path, "tell(**flush())")  # the next process sends what the killed ones left
    assert list((tmp_path / "waiting").glob("*.waiting")) == []
    (workload,) = folded(tmp_path).workloads
    flushes, rest = divmod(workload.calls, 7)
    assert rest == 0
    assert told + 1 <= flushes <= told + 1 + 3, "each killed process may have ended one that it could not tell of"


def test_a_full_disk_loses_nothing_until_memory_is_full(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        """
store.away = True
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
tell(**flush())
tell(**flush())
store.away = False  # the store's disk is full as well
tell(**flush())
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
tell(**flush())
""",
    )
    assert ["wait in memory" in one.get("error", "") for one in found] == [True, True, True, False]
    assert (len(found[3]["keys"]), found[3]["waiting"], found[3]["lost"]) == (4, 0, 0)
    assert folded(tmp_path).workloads[0].calls == 4 * 7
    assert list((tmp_path / "waiting").iterdir()) == [], "no half-written file stays"


def test_what_a_dead_store_cost_is_told_once_it_is_back(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        """
spool = Spool(store, Identity("f", "m", "h"), Calls(), folder / "waiting", max_waiting_bytes=40_000)
store.away = True
for _ in range(30):
    tell(**flush())
store.away = False
tell(**flush())
tell(**flush())
""",
    )
    lost = found[-1]["lost"]
    assert 10 < lost < 30
    assert found[29]["waiting"] + lost == 30
    profile = folded(tmp_path)
    assert profile.dropped == 7 * lost
    assert profile.workloads[0].calls == 7 * (32 - lost)


JUMPING_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, out);
    if (id == CLOCK_REALTIME && !failed) {
        FILE *file = fopen(getenv("JUMP_FILE"), "r");
        long seconds = 0;
        if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
        out->tv_sec += seconds;
    }
    return failed;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wall_clock_that_jumps_bends_no_window(tmp_path: Path) -> None:
    library, jump = tmp_path / "clock.so", tmp_path / "jump"
    (tmp_path / "clock.c").write_text(JUMPING_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    day_s = 86_400
    found = lines(
        tmp_path,
        f"""
for seconds in (0, 0, {day_s}, {day_s}, {day_s}, {-2 * day_s}, {-2 * day_s}, {-2 * day_s}):
    Path(os.environ["JUMP_FILE"]).write_text(str(seconds))
    tell(wall_ns=time.time_ns(), **flush())
""",
        {"LD_PRELOAD": str(library), "JUMP_FILE": str(jump)},
    )
    keys = [key for one in found for key in one["keys"]]
    assert len(set(keys)) == len(found)
    store = DirectoryStore(tmp_path / "store")
    tallies = [spool_fold.tally(key, read(store, key)) for key in keys]
    assert all(0 < tally.end_ns - tally.start_ns < day_s * 10**9 // 2 for tally in tallies)
    off_s = [round((tally.end_ns - one["wall_ns"]) / 10**9 / day_s) for one, tally in zip(found, tallies, strict=True)]
    assert off_s == [0, 0, -1, -1, 0, 3, 3, 0]
