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
    """The lock file of a device; the kernel frees the lock when its holder dies, however it dies."""
    return Path(tempfile.gettempdir()) / f"gristmill-lease-{os.getuid()}-{device}.lock"


@contextlib.contextmanager
def hold(device: str = "cpu") -> Iterator[None]:
    """Waits until no other process measures on that device.

    Raises:
        HostFaultError: the lock file cannot be opened.
    """
    path = lease_path(device)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFaultError(f"lease {path}: {error.strerror}; remove the file or free the folder") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
