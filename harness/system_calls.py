"""The system calls that untrusted programs are refused, as a seccomp filter. Standard library only."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

CLONE_THREAD = 0x10000
CLONE_NAMESPACES = 0x7E020000
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

# Numbers by architecture: x86_64, aarch64.
REFUSED_ALWAYS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "setns": (308, 268),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
}
REFUSED_TO_KERNELS = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "seccomp": (317, 277),
    "personality": (135, 92),
    "pidfd_open": (434, 434),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "mlock": (149, 228),
    "mlock2": (325, 284),
    "mlockall": (151, 230),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "accept": (43, 202),
    "accept4": (288, 242),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
PRCTL = (157, 167)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def number(name: str) -> int:
    """A system call's number on this machine; raises KeyError where the tables do not cover it."""
    found = (REFUSED_ALWAYS | REFUSED_TO_KERNELS)[name][_column()]
    if found is None:
        raise KeyError(name)
    return found


def filter_program(kernel: bool) -> bytes:
    """An array of `struct sock_filter`. Compilers (not `kernel`) may start programs, kernels only threads.

    Raises:
        KeyError: the tables do not cover this machine.
    """
    column = _column()
    load, jump_equal, jump_greater, jump_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000, 0x80000000
    not_permitted, not_implemented = refuse | 1, refuse | 38
    lines = [
        (load, 0, 0, 4),
        (jump_equal, 1, 0, AUDIT_ARCH[platform.machine()]),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),
        (jump_greater, 0, 1, X32_BIT),
        (answer, 0, 0, not_permitted),
    ]
    for numbers in (REFUSED_ALWAYS | (REFUSED_TO_KERNELS if kernel else {})).values():
        refused = numbers[column]
        if refused is not None:
            lines += [(jump_equal, 0, 1, refused), (answer, 0, 0, not_permitted)]
    lines += [
        # clone3 passes its flags by pointer, out of a filter's sight: the C library then falls back to clone.
        (jump_equal, 0, 1, CLONE3[column]),
        (answer, 0, 0, not_implemented),
        # It must end with the process that watches it.
        (jump_equal, 0, 4, PRCTL[column]),
        (load, 0, 0, 16),
        (jump_equal, 0, 1, PR_SET_PDEATHSIG),
        (answer, 0, 0, not_permitted),
        (answer, 0, 0, allow),
        (jump_equal, 0, 5 if kernel else 3, CLONE[column]),
        (load, 0, 0, 16),
        (jump_bits, 0, 1, CLONE_NAMESPACES),
        (answer, 0, 0, not_permitted),
        *([(jump_bits, 1, 0, CLONE_THREAD), (answer, 0, 0, not_permitted)] if kernel else []),
        (answer, 0, 0, allow),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def install(program: bytes) -> None:
    """Filters the calling thread's system calls, and those of all that it starts; there is no way back."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)), 16)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")


def hand_over(program: bytes) -> int:
    """A file in memory that holds the filter, for a program that installs it itself once it has been executed."""
    descriptor = os.memfd_create("filter", 0)
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _column() -> int:
    return {"x86_64": 0, "aarch64": 1}[platform.machine()]
