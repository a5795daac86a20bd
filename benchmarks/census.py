"""What a judge holds, and what would be left of it: processes, descriptors, shared memory, files, control groups."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from harness.confine import FIRST_UID

OPEN_TO_ALL = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
GROUP_MARK = "/gristmill-"


@dataclass(frozen=True)
class Census:
    """Counts at one moment. `-` gives what has been added."""

    processes: int
    """Descendants of this process, and processes of runners' users that nobody watches any more."""
    descriptors: int
    """Of this process."""
    shared_memories: int
    """Files in memory that this process holds."""
    files: int
    """In the judge's folder, and of runners' users wherever everybody may write."""
    groups: int
    """Control groups of this process's zygotes, past ones included."""

    def __sub__(self, earlier: Census) -> Census:
        return Census(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))

    @property
    def total(self) -> int:
        return sum(max(0, getattr(self, one.name)) for one in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, one.name)} {one.name.replace('_', ' ')}" for one in fields(self))


class Enumerator:
    """Takes censuses, and remembers the control group folders that it has seen."""

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir
        self._folders: set[Path] = set()
        self._files: set[Path] = set()
        self.new_files: set[Path] = set()
        """Those that the last count found and the one before had not."""

    def count(self) -> Census:
        """The counts of now, without what is only waiting for the garbage collector."""
        gc.collect()
        parents = dict(_parents())
        family = _family(parents)
        orphans = {pid for pid, (parent, user) in parents.items() if parent <= 1 and user >= FIRST_UID}
        for pid in family:
            self._folders |= {Path(link) for link in _links(pid) if GROUP_MARK in link}
        links = _links(os.getpid())
        files = {*self._work_dir.rglob("*"), *_files_of_runners()}
        self.new_files, self._files = files - self._files, files
        return Census(
            processes=len(family) - 1 + len(orphans),
            descriptors=len(links),
            shared_memories=sum(link.startswith("/memfd:") for link in links),
            files=len(files),
            groups=sum(1 for folder in self._folders for _ in _groups(folder)),
        )


def descendants() -> set[int]:
    """Processes below this one."""
    return _family(dict(_parents())) - {os.getpid()}


def resident_bytes() -> int:
    """Memory of this process that is not swapped out, shared memory included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _parents() -> Iterator[tuple[int, tuple[int, int]]]:
    """Process id, parent and user of every process."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            yield int(entry.name), (int(status[1]), entry.stat().st_uid)


def _family(parents: Mapping[int, tuple[int, int]]) -> set[int]:
    """This process and all below it."""
    family = {os.getpid()}
    while True:
        more = {pid for pid, (parent, _) in parents.items() if parent in family} - family
        if not more:
            return family
        family |= more


def _links(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def _files_of_runners() -> Iterator[Path]:
    for folder in OPEN_TO_ALL:
        for path in folder.glob("*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid >= FIRST_UID:
                    yield path


def _groups(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        if folder.is_dir():
            yield folder
            yield from (entry for entry in folder.iterdir() if entry.is_dir())
