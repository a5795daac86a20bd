"""Control groups: how much memory and how many processes one sandboxed process may have, with all that it starts.

Each zygote has a folder of its own in the hierarchy that this host uses (v1: memory and pids apart; v2: one), locked
for as long as it lives, and in it a group per child. A folder that nobody locks was left by a zygote that was killed:
the next one sweeps it away, whatever process namespace either is in. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

# pathlib would cost every start a few milliseconds:
# ruff: noqa: PTH102, PTH106, PTH116, PTH118, PTH120, PTH123, PTH208

PREFIX = "gristmill-"
CONTROLLERS = ("memory", "pids")
SWEEP_TIMEOUT_S = 2.0
CLAIMS = 8


class Hierarchy:
    """One tree of groups: its mount, this process's place in it, and the controllers that it serves."""

    def __init__(self, version: int, controllers: tuple[str, ...], place: str) -> None:
        self.version = version
        self.controllers = controllers
        self.place = place


class Groups:
    """Those of one zygote. Where none can be made, nothing happens."""

    def __init__(self) -> None:
        self._folders: list[tuple[Hierarchy, str, int]] = []
        self._stale: list[str] = []
        for hierarchy in writable():
            sweep(hierarchy.place)
            with contextlib.suppress(OSError):
                folder, lock = _claim(hierarchy.place)
                self._folders.append((hierarchy, folder, lock))
                if hierarchy.version == 2:
                    _write(folder, "cgroup.subtree_control", " ".join(f"+{name}" for name in hierarchy.controllers))

    def make(self, name: str, limits: dict[str, int]) -> list[Group]:
        """A group per hierarchy, with its limits; one that cannot be made is left out."""
        groups = []
        for hierarchy, folder, _ in self._folders:
            group = Group(hierarchy, os.path.join(folder, name))
            try:
                group.create(limits)
            except OSError:
                self._stale.append(group.path)
            else:
                groups.append(group)
        return groups

    def remove(self, groups: list[Group]) -> None:
        """Removes groups whose processes have ended, and earlier ones that were still busy."""
        self._stale = [path for path in [*self._stale, *(group.path for group in groups)] if not _remove(path)]

    def close(self) -> None:
        """Removes everything of this zygote's."""
        for _, folder, lock in self._folders:
            _clear(folder)
            os.close(lock)
        self._folders = []


class Group:
    """One child's group in one hierarchy."""

    def __init__(self, hierarchy: Hierarchy, path: str) -> None:
        self.path = path
        self._hierarchy = hierarchy

    @property
    def layers(self) -> list[str]:
        return [f"{name} group" for name in self._hierarchy.controllers]

    def create(self, limits: dict[str, int]) -> None:
        os.mkdir(self.path)
        memory, processes = str(limits["resident_bytes"]), str(limits["processes"])
        if self._hierarchy.version == 1:
            if "memory" in self._hierarchy.controllers:
                _write(self.path, "memory.limit_in_bytes", memory)
                with contextlib.suppress(OSError):  # swap may not be counted here
                    _write(self.path, "memory.memsw.limit_in_bytes", memory)
        else:
            _write(self.path, "memory.max", memory)
            with contextlib.suppress(OSError):
                _write(self.path, "memory.swap.max", "0")
                _write(self.path, "memory.oom.group", "1")
        if "pids" in self._hierarchy.controllers:
            _write(self.path, "pids.max", processes)

    def join(self) -> None:
        """Moves the calling process in."""
        _write(self.path, "cgroup.procs", "0")


def writable() -> list[Hierarchy]:
    """The hierarchies in which groups with limits can be made here: v1 where it is mounted, else v2."""
    mounted = _mounted()
    found = [one for one in mounted if one.version == 1 and os.access(one.place, os.W_OK)]
    covered = {name for one in found for name in one.controllers}
    if covered == set(CONTROLLERS):
        return found
    for one in mounted:
        if one.version == 2 and not covered:
            for place in (one.place, os.path.dirname(one.place)):
                if _delegates(place):
                    return [Hierarchy(2, CONTROLLERS, place)]
    return found


def sweep(place: str) -> None:
    """Removes folders of zygotes that are no more, with whatever still runs in them."""
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            if name.startswith(PREFIX):
                folder = os.path.join(place, name)
                with contextlib.suppress(OSError):
                    lock = _lock(folder)
                    _clear(folder)
                    os.close(lock)


def _mounted() -> list[Hierarchy]:
    with open("/proc/self/cgroup") as cgroup, open("/proc/self/mountinfo") as mounts:
        return parse(cgroup.read(), mounts.read())


def parse(cgroup: str, mounts: str) -> list[Hierarchy]:
    """Every mounted hierarchy that limits memory or processes, and this process's place in each.

    Args:
        cgroup: as in /proc/self/cgroup.
        mounts: as in /proc/self/mountinfo.
    """
    paths = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        served = tuple(name for name in CONTROLLERS if name in options.split(","))
        if kind == "cgroup" and served:
            found.append(Hierarchy(1, served, _join(point, root, paths.get(served[0], "/"))))
        elif kind == "cgroup2":
            found.append(Hierarchy(2, CONTROLLERS, _join(point, root, paths.get("", "/"))))
    return found


def _join(point: str, root: str, path: str) -> str:
    """Where a group of that path lies below a mount point that shows `root`."""
    inside = path[len(root.rstrip("/")) :] if path.startswith(root) else ""
    return (point + inside).rstrip("/")


def _delegates(place: str) -> bool:
    """Whether groups made in that place can have limits; asks for it where it was not so."""
    try:
        with open(os.path.join(place, "cgroup.subtree_control")) as file:
            missing = set(CONTROLLERS) - set(file.read().split())
        if missing:
            _write(place, "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))
    except OSError:
        return False
    return os.access(os.path.join(place, "cgroup.procs"), os.W_OK)


def _claim(place: str) -> tuple[str, int]:
    """Makes a folder and locks it; one that a sweeper got hold of in between is given up for another."""
    for _ in range(CLAIMS):
        folder = os.path.join(place, PREFIX + os.urandom(8).hex())
        os.mkdir(folder)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            return folder, _lock(folder)
    raise BlockingIOError(f"{place}: {CLAIMS} folders were swept away while they were made")


def _lock(folder: str) -> int:
    """A descriptor that holds the folder's lock until it is closed.

    Raises:
        BlockingIOError: somebody else holds it.
        FileNotFoundError: the folder is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _clear(folder: str) -> None:
    """Ends what runs in a folder's groups and removes them and it, as far as that goes within a time."""
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    left = [os.path.join(folder, entry.name) for entry in os.scandir(folder) if entry.is_dir()]
    while (left := [path for path in left if not _remove(path)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    _remove(folder)


def _remove(path: str) -> bool:
    """Removes a group; where processes are left in it, ends them instead and returns False."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.procs")) as file:
            for line in file:
                with contextlib.suppress(OSError):
                    os.kill(int(line), signal.SIGKILL)
        return False
    return True


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)
