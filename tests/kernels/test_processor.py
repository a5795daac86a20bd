"""Facts that the system states, read from files like sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernels.processor import FALLBACK_CLOCK_GHZ, Cache, caches, clock_ghz, count_processors, physical_cores

LEVELS = [
    (1, "Data", "32K", "0"),
    (1, "Instruction", "64K", "0"),
    (2, "Unified", "1024K", "0"),
    (3, "Unified", "32M", "0-3,8"),
]


def write(folder: Path, **facts: object) -> None:
    folder.mkdir(parents=True)
    for name, value in facts.items():
        (folder / name).write_text(f"{value}\n")


def test_caches_come_from_sysfs(tmp_path: Path) -> None:
    for index, (level, kind, size, shared) in enumerate(LEVELS):
        facts = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared, "coherency_line_size": 64}
        write(tmp_path / f"index{index}", **facts)
    expected = (Cache(1, 32 << 10, 64, 1), Cache(2, 1 << 20, 64, 1), Cache(3, 32 << 20, 64, 5))
    assert caches(tmp_path) == expected
    assert caches(tmp_path / "absent") == ()


def test_what_the_system_leaves_out_is_zero(tmp_path: Path) -> None:
    write(tmp_path / "index0", level=2, type="Unified", size="unknown")
    write(tmp_path / "index1", type="Unified", size="1K")
    assert caches(tmp_path) == (Cache(2, 0, 0, 1),)


def test_two_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    for number in usable:
        write(tmp_path / f"cpu{number}" / "topology", thread_siblings_list="0-1023")
    assert physical_cores(tmp_path) == 1
    assert physical_cores(tmp_path / "absent") == len(usable)


@pytest.mark.parametrize(("listed", "count"), [("", 0), ("3", 1), ("0-3", 4), ("0-3,8,10-11", 7)])
def test_lists_of_processors(listed: str, count: int) -> None:
    assert count_processors(listed) == count


def test_the_fastest_stated_clock_counts() -> None:
    assert clock_ghz("cpu MHz\t\t: 2500.0\n\ncpu MHz\t\t: 3100.5\n") == pytest.approx(3.1005)
    assert clock_ghz("") == FALLBACK_CLOCK_GHZ
