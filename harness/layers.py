"""The layers around an untrusted process: what each is for, which this host grants, and how to get the others."""

from __future__ import annotations

from dataclasses import dataclass

from harness import control_groups, landlock, sandbox, scheduling

ROOT_OR_USER_NAMESPACES = (
    "run as root, or allow user namespaces: sysctl user.max_user_namespaces=15000, and where they exist "
    "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; in a container grant "
    "CAP_SYS_ADMIN or a seccomp profile that permits unshare"
)
CGROUPS = (
    "run as root with a writable /sys/fs/cgroup, or in a delegated group: "
    "systemd-run --user --scope -p Delegate=yes ./mill ..."
)


@dataclass(frozen=True)
class Layer:
    """One layer, under the name that it has in a verdict's `isolation`."""

    name: str
    meaning: str
    """What is so where it stands."""
    remedy: str
    """What gives it to a host that lacks it."""


LAYERS = (
    Layer(
        "process namespace",
        "candidates see no other process, and end with all that they started",
        ROOT_OR_USER_NAMESPACES,
    ),
    Layer("mount namespace", "mounts of candidates are their own", ROOT_OR_USER_NAMESPACES),
    Layer("private root", "candidates see of the host's files only those named, read-only", ROOT_OR_USER_NAMESPACES),
    Layer("network namespace", "candidates reach no network, loopback included", ROOT_OR_USER_NAMESPACES),
    Layer("ipc namespace", "candidates share no queues or segments, and leave none", ROOT_OR_USER_NAMESPACES),
    Layer("host name namespace", "candidates cannot rename the host", ROOT_OR_USER_NAMESPACES),
    Layer("own user", "candidates share a user with no other process of this host", "run as root"),
    Layer("user namespace", "candidates are root of nothing but themselves", ROOT_OR_USER_NAMESPACES),
    Layer(
        "no capabilities",
        "candidates have none of root's powers, and no program gives them one",
        ROOT_OR_USER_NAMESPACES,
    ),
    Layer("no new privileges", "set-user-id programs give candidates nothing", "Linux 3.5 or newer"),
    Layer(
        "system call filter",
        "candidates cannot trace, open sockets or start programs",
        "a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
    ),
    Layer(
        "landlock",
        "candidates read what is named and write in /tmp, whatever mounts say",
        "Linux 5.13 or newer with landlock among its security modules (boot parameter lsm=landlock,...)",
    ),
    Layer("memory group", "a memory bomb ends itself and not the host", CGROUPS),
    Layer("pids group", "a fork bomb has few children", CGROUPS),
    Layer("resource limits", "address space, processor time, files and processes are bounded", "always there on Linux"),
    Layer(
        "first to go when memory runs out",
        "the kernel ends candidates before the judge",
        "a writable /proc/self/oom_score_adj",
    ),
)
ALTERNATIVES = ("own user", "user namespace")
"""One of them is enough: root gives each process a user, everybody else a namespace."""


@dataclass(frozen=True)
class Standing:
    """Whether a layer stands on this host, and in what form."""

    layer: Layer
    active: bool
    form: str = ""


def examine() -> tuple[Standing, ...]:
    """Every layer, as found around a process that was started to look.

    Raises:
        HostFaultError: no process starts.
    """
    process = sandbox.start(sandbox.Confinement(), argv=("/bin/true",))
    try:
        process.wait_ready()
        active = set(process.isolation)
    finally:
        process.close()
    chosen = next((name for name in ALTERNATIVES if name in active), ALTERNATIVES[0])
    forms = {"landlock": f"ABI {landlock.abi()}"}
    for hierarchy in control_groups.writable():
        for name in hierarchy.controllers:
            forms[f"{name} group"] = f"cgroup v{hierarchy.version}"
    return tuple(
        Standing(layer, layer.name in active, forms.get(layer.name, "") if layer.name in active else "")
        for layer in LAYERS
        if layer.name not in ALTERNATIVES or layer.name == chosen
    )


def real_time_permitted() -> bool:
    """Whether measured threads may go before all ordinary ones of this host."""
    with scheduling.measuring() as granted:
        return granted
