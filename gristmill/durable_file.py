"""Files that appear whole and stay after a power cut: written aside, synced, renamed; and read as nothing but files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

Stamp = tuple[int, int, int]
MISSING: Stamp = (0, 0, 0)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Makes `path` hold exactly `content`: readers see the old file or the new one, never a part.

    Raises:
        OSError: nothing was changed.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".aside-")
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read(path: Path, max_bytes: int = -1, follow: bool = False) -> bytes:
    """The content of a regular file, up to `max_bytes`.

    Never waits for a pipe or reads a device; nor, unless told to `follow` it, a link, whose target may be anywhere.

    Raises:
        OSError: there is none, or something else is there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)
    finally:
        os.close(descriptor)


def stamp(path: str | Path) -> Stamp:
    """When a file was last written, and which one it is: differs once it was written, and costs microseconds.

    `MISSING` if there is none.
    """
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a fifth of what Path.stat takes
    except OSError:
        return MISSING
    return found.st_mtime_ns, found.st_ino, found.st_size


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, not only the contents behind them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
