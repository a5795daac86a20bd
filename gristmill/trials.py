"""Trials: which kernels are about to run for the first time in a process, noted on disk before they do.

A kernel that takes its process down leaves its note behind, and no later process of this host runs it: without that,
the engine would die again at every start. A note belongs to a living process as long as that one holds its lock, which
the operating system lets go of however the process ends; neither a number that was given out again nor another
container's processes are taken for its owner.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill import durable_file, forked_child, records, trust
from gristmill.errors import CacheError, MalformedRecordError

SMOKE_TEST, FIRST_CALL = "smoke test", "first call"
DEATHS = 2
"""In so many trials in turn a kernel has to take a process down, and is not run any more. One may be anybody's: a
container that was ended, memory that ran out, a power cut."""
FORGOTTEN_S = 7 * 86400.0
"""After which a death alone counts no more."""
MAX_BYTES = 4096
_NEVER_HERE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a folder that this process cannot keep notes in answers, however much room there is."""

_notes: dict[int, Path | None] = {}
"""Descriptors of this process's notes, with the path of those that may go once it ends in good order."""


@dataclass(frozen=True)
class Note:
    """What was about to be done."""

    object: str
    """Digest of the shared object."""
    what: str
    worker: str
    """Which of the host's processes, by a name that survives restarts."""
    attempt: int
    """1, or one more than the last that took its process down."""
    pid: int
    begun_utc: str
    hangs: bool = False
    """It did not come back in time: known, not only supposed, to be the kernel's doing."""
    schema_version: int = 1


class Trial:
    """One kernel being tried by this process. `end` it once the kernel has come back."""

    def __init__(self, note: Note | None, path: Path, descriptor: int) -> None:
        self.came_back = False
        """Whether the call that was noted has returned: told by whoever made it."""
        self._note = note
        self._path = path
        self._descriptor = descriptor

    def end(self) -> None:
        """The process has survived it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor in _notes:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # says nothing any more, even if it cannot be removed
                self._path.unlink(missing_ok=True)
            del _notes[descriptor]
            os.close(descriptor)

    def hangs(self) -> None:
        """It has not come back: the note stays, whatever becomes of the process."""
        descriptor, self._descriptor = self._descriptor, -1
        if self._note is not None and descriptor in _notes:
            _notes[descriptor] = None
            with contextlib.suppress(OSError):
                _fill(descriptor, replace(self._note, attempt=DEATHS, hangs=True))


class Trials:
    """The notes of one host's processes, in a folder that they share and that outlasts them. Thread-safe."""

    def __init__(self, folder: Path | None = None, worker: str = "") -> None:
        """Without a folder nothing is noted, and every kernel may be tried."""
        self._folder = folder
        self._worker = worker
        self._lock = threading.Lock()
        self._warnings: dict[str, bool] = {}
        """Text to whether it was taken."""
        self._expected: list[tuple[Trial, str]] = []
        """Trials of first calls that have not ended."""
        if folder is not None:
            # Anew each time: a child that `multiprocessing` forked has lost what was registered before.
            atexit.unregister(_release)
            atexit.register(_release)

    def objection(self, sha256: str) -> str:
        """Why an object must not be run; empty if nothing speaks against it."""
        deaths = [note for _, note in self._deaths(sha256)]
        last = max(deaths, key=lambda note: (note.attempt, note.begun_utc), default=None)
        if last is None:
            return ""
        story = (
            f"{last.what} of object {records.short(sha256)} on {last.begun_utc} "
            f"{'did not come back' if last.hangs else 'took down its process'} ({last.pid})"
        )
        if last.attempt < DEATHS:
            self._warn(f"{story}, or was cut short; it is tried once more")
            return ""
        again = "" if last.hangs else f", the {last.attempt}. time in turn"
        return (
            f"{story}{again}; promote another, or delete {self._folder}/{records.short(sha256)}* to have it tried again"
        )

    def begin(self, sha256: str, what: str) -> Trial:
        """Notes, durably, that an object is about to be run.

        Where this process may never write, that is warned of once, and the trial is made without a note.

        Raises:
            CacheError: it could not be noted, for lack of room or a fault; the object is not to be run.
        """
        if self._folder is None:
            return Trial(None, Path(), -1)
        path = self._folder / f"{trust.checked_digest(sha256)}.{secrets.token_hex(8)}"
        descriptor = -1
        try:
            self._make_folder(self._folder)
            attempt = 1 + max((note.attempt for _, note in self._deaths(sha256)), default=0)
            note = Note(sha256, what, self._worker, attempt, os.getpid(), records.utc_now())
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _fill(descriptor, note)
            durable_file.sync_folder(self._folder)
        except OSError as error:
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                os.close(descriptor)
            told = f"{self._folder}: {error.strerror or error}"
            if error.errno in _NEVER_HERE:
                self._warn(
                    f"{told}; kernels are tried without a note, so one that takes the engine down is tried again at "
                    "every start: let the engine write to this folder"
                )
                return Trial(None, path, -1)
            raise CacheError(f"{told}; a kernel is not tried where that cannot be noted: free some space") from None
        _notes[descriptor] = path
        return Trial(note, path, descriptor)

    def passed(self, sha256: str, what: str) -> None:
        """Forgets deaths of this worker at the same point: it has got past it."""
        for path, note in self._deaths(sha256):
            if (note.what, note.worker) == (what, self._worker):
                with contextlib.suppress(OSError):
                    path.unlink()

    def expect(self, sha256: str) -> Trial:
        """Notes that the first call of an object is about to be made. It ends at `settle`, or when the next is about
        to be made, once it has come back: so a kernel that takes the process down does not take along the good name
        of those that ran in the same step.

        Raises:
            CacheError: as `begin`.
        """
        self.settle()
        trial = self.begin(sha256, FIRST_CALL)
        with self._lock:
            self._expected.append((trial, sha256))
        return trial

    def settle(self) -> None:
        """To be called at each step boundary: ends the trials of first calls that have come back."""
        if not self._expected:
            return
        with self._lock:
            back = [pair for pair in self._expected if pair[0].came_back]
            self._expected = [pair for pair in self._expected if not pair[0].came_back]
        for trial, sha256 in back:
            trial.end()
            self.passed(sha256, FIRST_CALL)

    def take_warnings(self) -> list[str]:
        """What somebody should look at, each once."""
        with self._lock:
            fresh = [text for text, taken in self._warnings.items() if not taken]
            self._warnings.update(dict.fromkeys(fresh, True))
        return fresh

    def _warn(self, text: str) -> None:
        with self._lock:
            self._warnings.setdefault(text, False)

    def _deaths(self, sha256: str) -> list[tuple[Path, Note]]:
        """Notes that nobody will end: of processes that are gone, and of kernels that hang."""
        if self._folder is None:
            return []
        found = [(path, _read(path)) for path in self._folder.glob(f"{trust.checked_digest(sha256)}.*")]
        return [(path, note) for path, note in found if note is not None and note.object == sha256]

    @staticmethod
    def _make_folder(folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            durable_file.sync_folder(folder.parent)


def _fill(descriptor: int, note: Note) -> None:
    content = records.canonical_json(note)
    os.ftruncate(descriptor, 0)
    if os.pwrite(descriptor, content, 0) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def _read(path: Path) -> Note | None:
    """A note that counts; None if its process lives, it is half written (then nothing was run), or long ago."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        note = records.parse(Note, os.pread(descriptor, MAX_BYTES, 0), str(path))
        if not note.hangs:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not disturb each other
        written_s = os.fstat(descriptor).st_mtime
    except (OSError, MalformedRecordError):
        return None
    finally:
        os.close(descriptor)
    return note if note.attempt >= DEATHS or time.time() - written_s < FORGOTTEN_S else None


def _release() -> None:
    """A process that ends in good order in the middle of a trial was not taken down by it."""
    for path in filter(None, [*_notes.values()]):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


forked_child.closes(_notes)  # notes are to be found dead if the parent is, although the child lives


@contextlib.contextmanager
def noted(trials: Trials, sha256: str, what: str) -> Iterator[Trial]:
    """A trial that has ended once the block is left, unless it was told to hang; errors as `Trials.begin`."""
    trial = trials.begin(sha256, what)
    try:
        yield trial
    finally:
        trial.end()
