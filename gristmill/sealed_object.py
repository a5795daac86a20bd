"""Loading a shared object from bytes that nobody can change any more: what was hashed is what runs.

A file may be exchanged between the moment it is hashed and the moment it is mapped, and even a mapped one is read from
the disk page by page as it runs. So the bytes are read once, hashed, copied into memory that the kernel seals against
every writer, this process included, and loaded from there.

Loading runs code. What it does to the arithmetic of the thread that loads is undone: objects that GCC before 13 links
with `-ffast-math` switch denormal numbers off there, for the engine as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from gristmill import durable_file
from gristmill.errors import NativeKernelError
from gristmill.records import sha256_hex

_ADD_SEALS = 1033
"""`F_ADD_SEALS` of linux/fcntl.h, which Python 3.11 does not name."""
_SEALS = 0x1 | 0x2 | 0x4 | 0x8
"""Against further seals, shrinking, growing and writing."""

_ENVIRONMENT_BYTES = 64
"""Room for `fenv_t`: 32 bytes on x86_64, 8 on aarch64."""

_loaded: dict[str, ctypes.CDLL] = {}
"""By digest. Never unloaded: a call may be in flight, and their number is bounded by what a host was ever sent."""
_lock = threading.Lock()


def load(path: Path, sha256: str = "") -> ctypes.CDLL:
    """The shared object that a file holds now; one that was loaded before if the content is the same.

    Args:
        sha256: what its content must be; empty takes whatever is there.

    Raises:
        NativeKernelError: it is gone, is no regular file, holds other bytes, or can't be loaded on this host.
    """
    try:
        content = durable_file.read(path)
    except OSError as error:
        raise NativeKernelError(f"kernel {path}: {error.strerror}; restart the host to fetch it again") from None
    found = sha256_hex(content)
    if sha256 and found != sha256:
        raise NativeKernelError(f"kernel {path}: changed since it was verified; restart the host to fetch it again")
    with _lock:
        if found not in _loaded:
            try:
                _loaded[found] = _mapped(content, found)
            except OSError as error:
                raise NativeKernelError(
                    f"kernel {path}: cannot be loaded ({error}); it was built elsewhere, or this host forbids code in "
                    "sealed memory (memfd_create)"
                ) from None
        return _loaded[found]


def _mapped(content: bytes, sha256: str) -> ctypes.CDLL:
    descriptor = os.memfd_create(f"gristmill-{sha256[:12]}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
        with _same_arithmetic():
            return ctypes.CDLL(_path(descriptor, len(_loaded)))


@contextlib.contextmanager
def _same_arithmetic() -> Iterator[None]:
    """The thread rounds, flushes and traps afterwards as it did before."""
    library = _mathematics()
    kept = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    library.fegetenv(kept)
    try:
        yield
    finally:
        library.fesetenv(kept)


@functools.cache
def _mathematics() -> ctypes.CDLL:
    """The C library's, by whichever name this system has it."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "fesetenv") else ctypes.CDLL("libm.so.6")


def _path(descriptor: int, number: int) -> str:
    """A path to a descriptor, spelled differently for each `number`.

    The loader takes one path for one library, whatever is behind it, and descriptors are used again. So the number's
    binary digits are written as `/` and `/.`, which a path may hold anywhere.
    """
    digits = f"{number:b}".replace("1", "/.").replace("0", "/")
    return f"/proc/self/fd{digits}/{descriptor}"
