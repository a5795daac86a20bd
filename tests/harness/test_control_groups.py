"""Where control groups are made, by what a host mounts; what is written; and who may sweep whose away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import control_groups
from harness.control_groups import Group, Groups, Hierarchy, parse

REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = {"resident_bytes": 1 << 28, "processes": 40}
V1 = (
    "35 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "36 24 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "37 24 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
)
V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def described(found: list[Hierarchy]) -> list[tuple[int, tuple[str, ...], str]]:
    return [(one.version, one.controllers, one.place) for one in found]


@pytest.mark.parametrize(
    ("cgroup", "mounts", "expected"),
    [
        (
            "4:memory:/a/b\n3:pids:/\n1:cpu,cpuacct:/c\n",
            V1,
            [(1, ("memory",), "/sys/fs/cgroup/memory/a/b"), (1, ("pids",), "/sys/fs/cgroup/pids")],
        ),
        ("0::/user.slice/x.scope\n", V2, [(2, ("memory", "pids"), "/sys/fs/cgroup/user.slice/x.scope")]),
        ("0::/\n", V2, [(2, ("memory", "pids"), "/sys/fs/cgroup")]),
        (
            "4:memory,pids:/docker/1f\n",
            "35 24 0:30 /docker/1f /sys/fs/cgroup/both ro - cgroup cgroup rw,pids,memory\n",
            [(1, ("memory", "pids"), "/sys/fs/cgroup/both")],
        ),
        (
            "4:memory:/docker/1f/inner\n",
            "35 24 0:30 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            [(1, ("memory",), "/sys/fs/cgroup/memory/inner")],
        ),
        ("1:name=systemd:/\n", "30 24 0:25 / /proc rw - proc proc rw\n", []),
    ],
)
def test_places_are_found(cgroup, mounts, expected):
    assert described(parse(cgroup, mounts)) == expected


def test_this_host_s_own_are_understood():
    for one in control_groups.writable():
        assert Path(one.place, "cgroup.procs").exists()


@pytest.mark.parametrize(
    ("hierarchy", "expected"),
    [
        (
            Hierarchy(1, ("memory",), ""),
            {"memory.limit_in_bytes": "268435456", "memory.memsw.limit_in_bytes": "268435456"},
        ),
        (Hierarchy(1, ("pids",), ""), {"pids.max": "40"}),
        (
            Hierarchy(2, ("memory", "pids"), ""),
            {"memory.max": "268435456", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "40"},
        ),
    ],
)
def test_limits_are_written(tmp_path, hierarchy, expected):
    """Into an ordinary folder, where the kernel's files are ordinary files."""
    group = Group(hierarchy, str(tmp_path / "group"))
    group.create(LIMITS)
    assert {path.name: path.read_text() for path in (tmp_path / "group").iterdir()} == expected
    group.join()
    assert (tmp_path / "group" / "cgroup.procs").read_text() == "0"
    assert group.layers == [f"{name} group" for name in hierarchy.controllers]


def test_two_zygotes_do_not_sweep_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "writable", lambda: [Hierarchy(1, (), str(tmp_path))])
    first = Groups()
    (made,) = first.make("1", LIMITS)
    second = Groups()
    assert Path(made.path).exists()
    first.remove([made])
    assert not Path(made.path).exists()
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_locks_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "writable", lambda: [Hierarchy(1, (), str(tmp_path))])
    left = tmp_path / (control_groups.PREFIX + "left")
    (left / "3").mkdir(parents=True)
    (tmp_path / "of somebody else").mkdir()
    Groups().close()
    assert [path.name for path in tmp_path.iterdir()] == ["of somebody else"]


def test_many_starting_at_once_all_get_a_folder(tmp_path):
    """Each sweeps while the others make theirs."""
    script = (
        "import sys\nfrom harness import control_groups as c\n"
        "c.writable = lambda: [c.Hierarchy(1, (), sys.argv[1])]\n"
        "for _ in range(40):\n    g = c.Groups()\n    made = g.make('1', {'resident_bytes': 1, 'processes': 1})\n"
        "    assert len(made) == 1, 'no folder'\n    g.remove(made)\n    g.close()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command, env={"PYTHONPATH": str(REPOSITORY)}) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    assert list(tmp_path.iterdir()) == []


def test_processes_left_in_a_group_are_ended():
    places = control_groups.writable()
    if not places:
        pytest.skip("no control groups can be made here")
    groups = Groups()
    made = groups.make("busy", LIMITS)
    sleeper = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    for group in made:
        Path(group.path, "cgroup.procs").write_text(str(sleeper.pid))
    groups.remove(made)
    assert sleeper.wait(10) == -9
    deadline = time.monotonic() + 10
    while any(os.path.exists(group.path) for group in made) and time.monotonic() < deadline:  # noqa: PTH110
        groups.remove([])
        time.sleep(0.01)
    assert not any(Path(group.path).exists() for group in made)
    groups.close()
