"""Starts one untrusted program behind every wall that this host offers. Run as a script; standard library only.

    python -I -S confine.py '{"argv": [...], ...}'

The process that is started keeps watch and never runs anything untrusted: it enters a new process namespace, forks,
and the child, which is process 1 in there, walls itself in and becomes the program. When process 1 dies, the kernel
kills all that it started. The watch ends it when its own lifeline closes, which the judge's death does too, however it
died.

Messages on the lifeline, one JSON object a line: `{"pid": N}`, `{"isolation": [...]}`, then `{"exit": N}` or
`{"signal": N}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # the module `typing` would cost every start a few milliseconds
if TYPE_CHECKING:
    from typing import Any

# pathlib too would cost every start a few milliseconds:
# ruff: noqa: PTH100, PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211

CLONE_THREAD = 0x10000
CLONE_NEWNS = 0x20000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38

ROOT_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
DEVICES = ("null", "zero", "urandom")
AUTOGROUP = "/proc/self/autogroup"
FIRST_UID = 1_900_000_000
"""Users of runners: this plus the watch's process id, so that no two runners that live at once share a user."""

# Numbers by architecture: x86_64, aarch64.
DENIED_ALWAYS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
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
    "pidfd_getfd": (438, 438),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "syslog": (103, 116),
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
}
DENIED_TO_KERNELS = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    check(libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    kept = os.statvfs(target).f_flag & (MS_NODEV | 8)  # in a user namespace inherited flags may not be cleared
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def leave_host_root() -> None:
    """Makes a file system in memory the root, with the host's at /host."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    os.mkdir("/tmp/host")
    check(libc.syscall(DENIED_ALWAYS["pivot_root"][architecture()], b"/tmp", b"/tmp/host"), "pivot_root")
    os.chdir("/")


def furnish_root(spec: dict[str, Any]) -> None:
    """Fills the new root with the named host paths, read-only, three devices and an empty /tmp, and drops the host's.

    An error here is fatal: half a root would still show the host.
    """
    os.mkdir("/tmp")
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={spec['limits']['scratch_bytes']}")
    for name in ROOT_LINKS:
        if os.path.islink(f"/host/{name}"):
            os.symlink(os.readlink(f"/host/{name}"), f"/{name}")
    for source, target in spec["visible"]:
        if os.path.exists(f"/host{source}") and not os.path.lexists(target):
            bind_read_only(f"/host{source}", target)
    os.mkdir("/dev")
    for name in DEVICES:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        mount(f"/host/dev/{name}", f"/dev/{name}", None, MS_BIND)
    if spec["proc"]:
        os.mkdir("/proc")
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    check(libc.umount2(b"/host", MNT_DETACH), "umount")
    os.rmdir("/host")
    mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def architecture() -> int:
    """Column of the system call tables; raises KeyError on a machine they do not cover."""
    return {"x86_64": 0, "aarch64": 1}[platform.machine()]


def seccomp_program(kernel: bool) -> list[tuple[int, int, int, int]]:
    """A filter that refuses what no kernel needs. Compilers (not `kernel`) may start programs, kernels only threads."""
    column = architecture()
    load, jump_equal, jump_greater, jump_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    not_permitted, not_implemented, kill = refuse | 1, refuse | 38, 0x80000000
    denied = DENIED_ALWAYS | (DENIED_TO_KERNELS if kernel else {})
    program = [
        (load, 0, 0, 4),
        (jump_equal, 1, 0, AUDIT_ARCH[platform.machine()]),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),
        (jump_greater, 0, 1, X32_BIT),
        (answer, 0, 0, not_permitted),
    ]
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            program += [(jump_equal, 0, 1, number), (answer, 0, 0, not_permitted)]
    # clone3 passes its flags by pointer, out of a filter's sight: the C library then falls back to clone.
    program += [(jump_equal, 0, 1, CLONE3[column]), (answer, 0, 0, not_implemented)]
    if kernel:
        program += [
            (jump_equal, 0, 3, CLONE[column]),
            (load, 0, 0, 16),
            (jump_bits, 1, 0, CLONE_THREAD),
            (answer, 0, 0, not_permitted),
        ]
    return [*program, (answer, 0, 0, allow)]


def filter_system_calls(kernel: bool) -> None:
    code = b"".join(struct.pack("<HBBI", *line) for line in seccomp_program(kernel))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, 2, ctypes.addressof(ctypes.create_string_buffer(header, 16)), 0, 0), "seccomp")


def drop_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities() -> None:
    header = ctypes.create_string_buffer(struct.pack("<II", 0x20080522, 0), 8)
    nothing = ctypes.create_string_buffer(24)
    check(libc.capset(header, nothing), "capset")


def limit(limits: dict[str, int]) -> None:
    for name, value in (
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_CPU", limits["cpu_s"]),
        ("RLIMIT_NOFILE", limits["files"]),
        ("RLIMIT_NPROC", limits["processes"]),
        ("RLIMIT_FSIZE", limits["file_bytes"]),
        ("RLIMIT_CORE", 0),
    ):
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        granted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (granted, granted))


def wall_in(spec: dict[str, Any], uid: int, active: list[str]) -> None:
    """Applies each layer in turn; one that the host refuses is left out of `active`, and the rest still count."""
    privileged = os.geteuid() == 0
    if spec["nice"]:
        yield_to_others(spec["nice"])
    for name, flag in (("network", CLONE_NEWNET), ("ipc", CLONE_NEWIPC), ("host name", CLONE_NEWUTS)):
        attempt(active, f"{name} namespace", unshare, flag)
    if attempt(active, "mount namespace", unshare, CLONE_NEWNS) and attempt(active, "private root", leave_host_root):
        furnish_root(spec)
    os.chdir(spec["cwd"])
    attempt(active, "resource limits", limit, spec["limits"])
    if privileged and "user namespace" not in active:
        attempt(active, "own user", drop_user, uid)
    elif "user namespace" in active:
        attempt(active, "no capabilities", drop_capabilities)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last: a change of user clears it
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    active.append("no new privileges")
    attempt(active, "system call filter", filter_system_calls, spec["argv"] is None)


def yield_to_others(nice: int) -> None:
    """For this process, and for its session, where the kernel shares the processor between sessions first."""
    os.nice(nice)
    if os.path.exists(AUTOGROUP):
        with open(AUTOGROUP, "w") as file:
            file.write(str(nice))


def attempt(active: list[str], layer: str, action: Any, *arguments: Any) -> bool:
    try:
        action(*arguments)
    except (OSError, ValueError, KeyError):
        return False
    active.append(layer)
    return True


def enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def watch(child: int, lifeline: socket.socket) -> int:
    """Waits for the child, or for the lifeline to close, and then ends the child."""
    process = os.pidfd_open(child)
    ready, _, _ = select.select([process, lifeline.fileno()], [], [])
    if process not in ready:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return status


def say(lifeline: socket.socket, **message: Any) -> None:
    try:
        lifeline.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        os._exit(1)  # the judge is gone


def main() -> None:
    spec = json.loads(sys.argv[1])
    lifeline = socket.socket(fileno=spec["lifeline"])
    uid = FIRST_UID + os.getpid()
    program: Any = None
    if spec["argv"] is None:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        program = __import__("runner")  # before its file goes out of sight
    active: list[str] = []
    if not spec["trusted"]:
        if os.geteuid() != 0:
            attempt(active, "user namespace", enter_user_namespace)
        attempt(active, "process namespace", unshare, CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        if spec["trusted"]:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        else:
            wall_in(spec, uid, active)
        say(lifeline, isolation=active)
        os.closerange(3, min(spec["keep"], default=3))
        for fd in range(3, 64):
            if fd not in spec["keep"]:
                try:
                    os.close(fd)
                except OSError:
                    continue
        if program is not None:
            program.main(spec["program"])
            os._exit(0)
        os.execve(spec["argv"][0], spec["argv"], spec["environment"])
    say(lifeline, pid=child)
    for fd in [*spec["keep"], 0, 1, 2]:
        os.close(fd)
    status = watch(child, lifeline)
    if os.WIFSIGNALED(status):
        say(lifeline, signal=os.WTERMSIG(status))
    else:
        say(lifeline, exit=os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
