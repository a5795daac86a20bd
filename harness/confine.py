"""The walls around one untrusted process, put up by that process itself before it becomes untrusted.

Called by `zygote.py` in a freshly forked child. Standard library only, and nothing in it needs a thread. A layer that
the host refuses is left out and not reported; what would leave half a wall standing is fatal.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

from harness import landlock, system_calls

TYPE_CHECKING = False  # the module `typing` would cost every start a few milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# pathlib too would cost every start a few milliseconds:
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211

CLONE_NEWNS = 0x20000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 38, 24
MAX_CAPABILITIES = 64

ROOT_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
DEVICES = ("null", "zero", "urandom")
AUTOGROUP = "/proc/self/autogroup"
FIRST_UID = 1_900_000_000
"""Users of runners: this plus the runner's process id, so that no two that live at once share a user."""
SCRATCH_FILES = 4096

PROGRAMS, KERNEL, HANDED_OVER = "programs", "kernel", "handed over"

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def attempt(active: list[str], layer: str, action: Callable[..., object], *arguments: Any) -> bool:
    """Notes the layer as active, unless the host refuses it."""
    try:
        action(*arguments)
    except (OSError, ValueError, KeyError):
        return False
    active.append(layer)
    return True


def end_with_parent() -> None:
    """The kernel kills this process when its parent dies. A change of user undoes it."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def enter_user_namespace() -> None:
    """Makes this process root of a namespace of its own, where it is an ordinary user outside."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def wall_in(spec: dict[str, Any], active: list[str]) -> int | None:
    """Applies each layer in turn and names it in `active`.

    Returns a descriptor of the system call filter where the program is to install it itself.
    """
    may_change_user = os.geteuid() == 0 and "user namespace" not in active
    number_outside = int(os.readlink("/proc/self"))
    if spec["nice"]:
        yield_to_others(spec["nice"])
    attempt(active, "first to go when memory runs out", go_first)
    for name, flag in (("network", CLONE_NEWNET), ("ipc", CLONE_NEWIPC), ("host name", CLONE_NEWUTS)):
        attempt(active, f"{name} namespace", unshare, flag)
    rooted = attempt(active, "mount namespace", unshare, CLONE_NEWNS)
    rooted = rooted and attempt(active, "private root", leave_host_root)
    if rooted:
        furnish_root(spec)
    else:
        displace(spec)
        os.mkdir(spec["scratch"], 0o700)
    os.chdir(spec["cwd"])
    attempt(active, "resource limits", limit, spec["limits"])
    empty_bounding_set()
    if may_change_user:
        attempt(active, "own user", drop_user, FIRST_UID + number_outside, [] if rooted else [spec["scratch"]])
    if "own user" in active or "user namespace" in active:
        attempt(active, "no capabilities", drop_capabilities)
    end_with_parent()
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    active.append("no new privileges")
    readable = [target if rooted else source for source, target in spec["visible"]]
    scratch = "/tmp" if rooted else spec["scratch"]
    attempt(
        active, "landlock", landlock.restrict, [*readable, "/proc"], [scratch], [f"/dev/{name}" for name in DEVICES]
    )
    return filter_system_calls(spec["filter"], active)


def displace(spec: dict[str, Any]) -> None:
    """For a host that grants no private root: what would appear somewhere is used where it is, and /tmp is a folder of
    its own, which the zygote removes afterwards.
    """
    import re  # here, because it takes milliseconds and is seldom needed

    moved = {target: source for source, target in spec["visible"] if source != target} | {"/tmp": spec["scratch"]}
    names = "|".join(re.escape(name) for name in sorted(moved, key=len, reverse=True))
    path = re.compile(rf"(?:^|(?<=[\s='\">:])|(?<=-I))({names})(?=$|[/\s'\":])")

    def here(value: Any) -> Any:
        return path.sub(lambda found: moved[found.group()], value) if isinstance(value, str) else value

    spec["cwd"] = here(spec["cwd"])
    spec["argv"] = spec["argv"] and [here(word) for word in spec["argv"]]
    for part in ("program", "environment"):
        spec[part] = {name: here(value) for name, value in spec[part].items()}
    spec["environment"]["TMPDIR"] = spec["scratch"]


def filter_system_calls(kind: str, active: list[str]) -> int | None:
    try:
        program = system_calls.filter_program(kind != PROGRAMS)
        handed = system_calls.hand_over(program) if kind == HANDED_OVER else None
        if handed is None:
            system_calls.install(program)
    except (OSError, KeyError):
        return None
    active.append("system call filter")
    return handed


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
    kept = os.statvfs(target).f_flag & (MS_NODEV | MS_NOEXEC)  # in a user namespace inherited flags may not be cleared
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def leave_host_root() -> None:
    """Makes a file system in memory the root, with the host's at /host."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    os.mkdir("/tmp/host")
    check(libc.syscall(system_calls.number("pivot_root"), b"/tmp", b"/tmp/host"), "pivot_root")
    os.chdir("/")


def furnish_root(spec: dict[str, Any]) -> None:
    """Fills the new root with the named host paths, read-only, three devices and an empty /tmp, and drops the host's.

    An error here is fatal: half a root would still show the host.
    """
    os.mkdir("/tmp")
    room = f"mode=1777,size={spec['limits']['scratch_bytes']},nr_inodes={SCRATCH_FILES}"
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, room)
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
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    check(libc.umount2(b"/host", MNT_DETACH), "umount")
    os.rmdir("/host")
    mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def drop_user(uid: int, owned: list[str]) -> None:
    """Becomes that user, to whom those folders then belong."""
    for path in owned:
        os.chown(path, uid, uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def empty_bounding_set() -> None:
    """No program that it starts can have a capability either, whoever owns the file."""
    for capability in range(MAX_CAPABILITIES):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            return  # past the last that this kernel has, or not permitted


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
        ("RLIMIT_MEMLOCK", 0),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_RTPRIO", 0),
    ):
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        granted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (granted, granted))


def go_first() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def yield_to_others(nice: int) -> None:
    """For this process, and for its session, where the kernel shares the processor between sessions first."""
    os.nice(nice)
    if os.path.exists(AUTOGROUP):
        with open(AUTOGROUP, "w") as file:
            file.write(str(nice))
