"""The lease on a device: who measures, measures alone, among all processes of this host. Builds do not take it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import HostFaultError


def lease_path(device: str) -> Path:
    """The lock file of a device, there while somebody holds the lease. The kernel frees the lock when its holder dies,
    however it dies; the file then stays until the next holder is done.
    """
    return Path(tempfile.gettempdir()) / f"gristmill-lease-{os.getuid()}-{device}.lock"


@contextlib.contextmanager
def hold(device: str = "cpu") -> Iterator[None]:
    """Waits until no other process measures on that device.

    Raises:
        HostFaultError: the lock file cannot be opened.
    """
    path = lease_path(device)
    try:
        fd = _locked(path)
    except OSError as error:
        raise HostFaultError(f"lease {path}: {error.strerror}; remove the file or free the folder") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked: who waits for it finds that it is gone, and takes another
        os.close(fd)


def _locked(path: Path) -> int:
    """The descriptor of the file, locked: of the one that is there once it is, and not of one that was."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
