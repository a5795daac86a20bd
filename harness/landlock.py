"""Landlock: what a process may do with files and ports, refused by the kernel even where mounts would allow it.

Standard library only. Rights by ABI version are those of the kernel's Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
MAKE_FIFO, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEVICE = 1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS_OF_FIRST_ABI = (1 << 13) - 1
READ = EXECUTE | READ_FILE | READ_DIR
SCRATCH = (
    READ_FILE
    | READ_DIR
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
)
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The kernel's version of Landlock; 0 where it has none or it is switched off."""
    return max(0, int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))))


def restrict(readable: Iterable[str], scratch: Iterable[str], devices: Iterable[str]) -> None:
    """From now on this process and all that it starts may read and execute under the first paths, write (but execute
    nothing) under the second, read and write the third, and touch nothing else; no TCP port may be used.

    Paths that do not exist are left out. Needs no_new_privs.

    Raises:
        OSError: the kernel has no Landlock, or refuses.
    """
    version = abi()
    handled = FILE_RIGHTS_OF_FIRST_ABI
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEVICE)):
        handled |= right if version >= since else 0
    ports = BIND_TCP | CONNECT_TCP if version >= 4 else 0
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= 6 else 0
    attributes = struct.pack("<QQQ", handled, ports, scopes)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _checked(
        libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)), "landlock"
    )
    try:
        for paths, rights in ((readable, READ), (scratch, SCRATCH), (devices, DEVICE)):
            for path in paths:
                _allow(rules, path, rights & handled)
        _checked(libc.syscall(RESTRICT_SELF, rules, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= OF_A_FILE
        rule = struct.pack("<Qi", rights, descriptor)
        _checked(libc.syscall(ADD_RULE, rules, RULE_PATH_BENEATH, rule, ctypes.c_uint32(0)), f"landlock {path}")
    finally:
        os.close(descriptor)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
