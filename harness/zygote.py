"""A trusted process that waits, warm, and forks one sandboxed process per request. Standard library only.

It never runs anything untrusted itself. A forked child walls itself in (`confine.py`) and becomes the program; the
zygote keeps watch. A child is process 1 of a namespace of its own, so the kernel kills all that it started when it
ends. The zygote ends it when its lifeline closes, and all of them when its control socket does: that is how they go
with the judge, however it died. The kernel ends them when the zygote dies.

A request is one packet on the control socket: a JSON object with the descriptors that go with it, the lifeline first.
Answers on the lifeline, one packet each: `{"pid": N}` with a handle on the process, `{"isolation": [...]}` or
`{"error": "..."}`, then `{"exit": N}` or `{"signal": N}`.

All children share the zygote's address-space layout, so it is no secret from one candidate to the next. It need not
be: what it would protect is not in the process. Seeds, expected outputs and the clock never reach it, and in its own
child a candidate may run any code anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys

from harness import confine, control_groups

TYPE_CHECKING = False  # the module `typing` would cost every start a few milliseconds
if TYPE_CHECKING:
    from typing import Any

MAX_PACKET_BYTES = 128 << 10
MAX_DESCRIPTORS = 64
CAP_SYS_ADMIN = 21
CLOSE_RANGE = 436
LAST_DESCRIPTOR = (1 << 31) - 1

# pathlib too would cost every start a few milliseconds:
# ruff: noqa: PTH123


class Child:
    """One that lives: the handle on it, the other end of the judge's lifeline, and what it may leave behind."""

    def __init__(self, pid: int, lifeline: socket.socket, groups: list[control_groups.Group], scratch: str) -> None:
        self.pid = pid
        self.lifeline = lifeline
        self.groups = groups
        self.scratch = scratch
        try:
            self.handle = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def kill(self) -> None:
        """Ends it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def reap(self, groups: control_groups.Groups) -> None:
        """Reports how it ended, when nothing of it is left."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.handle)
        groups.remove(self.groups)
        if os.path.lexists(self.scratch):
            import shutil  # here, because it takes milliseconds and is seldom needed

            shutil.rmtree(self.scratch, ignore_errors=True)
        if os.WIFSIGNALED(status):
            say(self.lifeline, signal=os.WTERMSIG(status))
        else:
            say(self.lifeline, exit=os.WEXITSTATUS(status))
        self.lifeline.close()


class Zygote:
    """The loop: requests, lifelines that close, children that end."""

    def __init__(self, control: socket.socket, layers: list[str], program: Any) -> None:
        self._control = control
        self._layers = layers
        self._program = program
        self._me = os.pidfd_open(os.getpid())
        self._namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._groups = control_groups.Groups()
        self._born = 0
        self._children: dict[int, Child] = {}
        """By both descriptors that tell of a child."""

    def serve(self) -> None:
        """Returns when the control socket is closed; then no child is left."""
        try:
            self._serve()
        finally:
            self._groups.close()

    def _serve(self) -> None:
        self._poll.register(self._control, select.POLLIN)
        asked = True
        while asked or self._children:
            for descriptor, _ in self._poll.poll():
                child = self._children.get(descriptor)
                if descriptor == self._control.fileno():
                    asked = self._answer()
                elif child is None:
                    continue  # gone since the poll
                elif descriptor == child.handle:
                    self._forget(child.handle)
                    self._forget(child.lifeline.fileno())
                    child.reap(self._groups)
                else:
                    self._forget(descriptor)
                    child.kill()

    def _forget(self, descriptor: int) -> None:
        if self._children.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _answer(self) -> bool:
        packet, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionError):  # the judge ended without hearing all that was said to it
            packet, descriptors, _, _ = socket.recv_fds(
                self._control, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        if not packet:
            self._poll.unregister(self._control)
            for child in self._children.values():
                child.kill()
            return False
        lifeline = socket.socket(fileno=descriptors[0])
        spec = json.loads(packet)
        self._born += 1
        spec["scratch"] = f"/tmp/gristmill-scratch-{os.getpid()}-{self._born}"
        groups = [] if spec["trusted"] else self._groups.make(str(self._born), spec["limits"])
        try:
            pid = self._fork(spec, groups, lifeline, descriptors[1:])
            child = Child(pid, lifeline, groups, spec["scratch"])
        except OSError as error:
            self._groups.remove(groups)
            say(lifeline, error=str(error))
            lifeline.close()
            return True
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)
        for descriptor in (child.handle, lifeline.fileno()):
            self._children[descriptor] = child
            self._poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(OSError):  # the judge is gone: its lifeline says so next
            socket.send_fds(lifeline, [json.dumps({"pid": child.pid}).encode()], [child.handle])
        return True

    def _fork(
        self,
        spec: dict[str, Any],
        groups: list[control_groups.Group],
        lifeline: socket.socket,
        descriptors: list[int],
    ) -> int:
        active = [] if spec["trusted"] else list(self._layers)
        apart = not spec["trusted"]
        apart = apart and confine.attempt(active, "process namespace", confine.unshare, confine.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    if not self._watched():
                        os._exit(1)
                    lifeline = place(lifeline.detach(), descriptors, spec["numbers"])
                    for group in groups:
                        if confine.attempt([], "", group.join):
                            active += group.layers
                    self._become(spec, active, lifeline)
                except BaseException as error:
                    say(lifeline, error=f"{type(error).__name__}: {error}")
                finally:
                    os._exit(1)
        finally:
            if apart and confine.libc.setns(self._namespace, 0):
                raise RuntimeError("cannot return to the process namespace")  # ends the zygote, and so all its children
        return pid

    def _watched(self) -> bool:
        """In the child: makes sure that it ends with the zygote; False where that has died already."""
        os.setsid()
        confine.end_with_parent()
        return not select.select([self._me], [], [], 0)[0]

    def _become(self, spec: dict[str, Any], active: list[str], lifeline: socket.socket) -> None:
        """In the child: walls itself in and becomes the program. Does not return."""
        self._control.detach()
        handed = None if spec["trusted"] else confine.wall_in(spec, active)
        kept = [*spec["numbers"], *([handed] if handed is not None else [])]
        say(lifeline, isolation=active)
        if spec["argv"] is None:
            lifeline.detach()
            close_all_but(kept)
            os.environ.clear()
            os.environ.update(spec["environment"])
            self._program.main(spec["program"])
            os._exit(0)
        close_all_but([*kept, lifeline.fileno()])  # which closes itself when the program begins
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and programs would inherit that
        argv = spec["argv"]
        if spec["filter"] == confine.HANDED_OVER:
            argv = [*argv, str(-1 if handed is None else handed)]
        os.execve(argv[0], argv, spec["environment"])


def place(lifeline: int, received: list[int], numbers: list[int]) -> socket.socket:
    """Gives received descriptors the numbers that they have in the judge; returns the lifeline, out of their way."""
    free = max([2, lifeline, *received, *numbers]) + 1
    raised = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, free) for descriptor in (lifeline, *received)]
    for descriptor, number in zip(raised[1:], numbers, strict=True):
        os.dup2(descriptor, number)
    return socket.socket(fileno=raised[0])


def close_all_but(kept: list[int]) -> None:
    """Closes every descriptor but those and the standard three."""
    first = 3
    for descriptor in [*sorted(kept), LAST_DESCRIPTOR]:
        if descriptor > first and confine.libc.syscall(CLOSE_RANGE, first, descriptor - 1, 0):
            os.closerange(first, min(descriptor, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        first = max(first, descriptor + 1)


def say(lifeline: socket.socket, **message: Any) -> None:
    with contextlib.suppress(OSError):  # the judge is gone
        lifeline.send(json.dumps(message).encode())


def has_capability(number: int) -> bool:
    with open("/proc/self/status") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff"))
    return bool(int(effective, 16) >> number & 1)


def become_root_of_a_namespace() -> None:
    """For an ordinary user: a user namespace, and a process namespace that belongs to it, entered by a fork.

    The process that was started waits for the fork and ends as it does.
    """
    confine.enter_user_namespace()
    confine.unshare(confine.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        close_all_but([])
        os.waitpid(pid, 0)
        os._exit(0)
    confine.end_with_parent()


def main() -> None:
    """Entry: `settings` is the second argument, after the repository's path."""
    settings = json.loads(sys.argv[2])
    control = socket.socket(fileno=settings["control"])
    layers: list[str] = []
    if not has_capability(CAP_SYS_ADMIN):
        confine.attempt(layers, "user namespace", become_root_of_a_namespace)
    try:
        program = None
        if settings["program"]:
            program = __import__(settings["program"], fromlist=["main"])
        if settings["path"]:
            sys.path[:] = settings["path"]
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's library starts its threads when it is imported
        for module in settings["modules"]:
            __import__(module)
    except Exception as error:
        say(control, error=f"{type(error).__name__}: {error}")
        return
    gc.collect()
    gc.freeze()  # what is never collected is never copied by a child's collector
    say(control, ready=True)
    Zygote(control, layers, program).serve()
