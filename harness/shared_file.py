"""Files in memory that the judge shares with runners."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

import torch

from harness.errors import HostFaultError

PAGE = mmap.PAGESIZE
CAPACITY_BYTES = 128 << 30
"""Of address space per shared file; memory is taken only where it is written."""
F_SEAL_FUTURE_WRITE = 0x10


class SharedFile:
    """A file in memory of fixed size; `reader` is a descriptor that runners get.

    Raises:
        HostFaultError: the host grants no such file.
    """

    def __init__(self, name: str, writable_by_runner: bool) -> None:
        try:
            self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.fchmod(self._fd, 0o600)
            os.ftruncate(self._fd, CAPACITY_BYTES)
            self.memory = mmap.mmap(self._fd, CAPACITY_BYTES)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            seals |= fcntl.F_SEAL_SEAL | (0 if writable_by_runner else F_SEAL_FUTURE_WRITE)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
            self.reader = self._fd if writable_by_runner else os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY)
        except OSError as error:
            raise HostFaultError(f"arena: cannot make a shared file in memory ({error}); free memory") from None
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    def scrub(self, kept_bytes: int) -> None:
        """Overwrites the first bytes, and gives back all memory behind them, so that nothing written is left."""
        kept_bytes = -(-kept_bytes // PAGE) * PAGE
        self.memory.madvise(mmap.MADV_REMOVE, kept_bytes, CAPACITY_BYTES - kept_bytes)
        ctypes.memset(self.address, 0, kept_bytes)

    def close(self) -> None:
        """Gives the descriptors back; the memory goes with the last tensor over it."""
        if self._fd >= 0:
            del self.bytes, self.memory
            if self.reader != self._fd:
                os.close(self.reader)
            os.close(self._fd)
            self._fd = -1
