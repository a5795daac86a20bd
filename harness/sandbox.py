"""The judge's side of a sandboxed process: start it, freeze it, learn how it ended, and leave nothing of it behind.

Processes are forked by a zygote (`zygote.py`), which keeps watch over them, and wall themselves in (`confine.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import scheduling
from harness.confinement import MEBIBYTE, Confinement, Filter, Limits, request
from harness.errors import HostFaultError

__all__ = [
    "MEBIBYTE",
    "Confinement",
    "End",
    "Filter",
    "Imports",
    "Limits",
    "Sandboxed",
    "Zygote",
    "signal_name",
    "start",
]

REPOSITORY = Path(__file__).resolve().parent.parent
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from harness import zygote; zygote.main()"
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
MAX_DEPARTING = 32
MAX_PACKET_BYTES = 4096
RUNNER = "harness.runner"
_to_thread = ctypes.PyDLL(None).tgkill


@dataclass(frozen=True)
class End:
    """How a process ended: by a signal, by exiting, or unknown where its watch died first."""

    exit_code: int | None = None
    signal_number: int | None = None

    def __str__(self) -> str:
        if self.signal_number is not None:
            return f"was ended by {signal_name(self.signal_number)}"
        return f"exited with code {self.exit_code}" if self.exit_code is not None else "vanished"


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Sandboxed:
    """One sandboxed process. `close` is idempotent."""

    def __init__(self, lifeline: socket.socket, zygote: Zygote) -> None:
        self._lifeline = lifeline
        self._zygote = zygote
        self._facts: dict[str, Any] = {}
        self._handle: int | None = None
        self._threads: tuple[int, int] | None = None
        """The program's process id and the folder that lists its threads, open once that was needed."""
        self._closed = False

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns once the walls stand and the program runs.

        Raises:
            HostFaultError: it did not start in time.
        """
        deadline = time.monotonic() + timeout_s
        while not {"pid", "isolation"} <= self._facts.keys():
            if {"exit", "signal", "error"} & self._facts.keys() or not self._read(deadline - time.monotonic()):
                self.close()
                reason = self._facts.get("error") or self._zygote.failure() or "it ended before it was up"
                if time.monotonic() >= deadline:
                    reason = f"none within {timeout_s:.0f} s"
                raise HostFaultError(
                    f"sandbox: no process came up: {reason}; check memory and process limits of this host, "
                    "and what `./mill doctor` says of its sandbox"
                )

    @property
    def isolation(self) -> tuple[str, ...]:
        """The layers that were active, known after `wait_ready`."""
        return tuple(self._facts.get("isolation", ()))

    def stop(self) -> None:
        """Tells the program to stop. That takes a microsecond, however many threads it has; `freeze` makes sure."""
        self._signal(signal.SIGSTOP)

    def freeze(self) -> None:
        """Stops every thread of the program, wherever it is, within microseconds.

        The first thread to take the signal stops all. One to the process as a whole is the first thread's to take,
        which may wait for the core on which another one spins: that one would go on for milliseconds, beside whatever
        the judge runs next. So each gets its own.
        """
        if self._handle is None:
            return
        try:
            if self._threads is None:
                pid = _process_id(self._handle)
                self._threads = pid, os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_CLOEXEC)
            pid, folder = self._threads
            for thread in os.listdir(folder):  # noqa: PTH208 pathlib takes no descriptor
                _to_thread(pid, int(thread), signal.SIGSTOP)
        except OSError:  # it has ended, or nobody may look
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the program with all that it started; its end can still be asked for."""
        self._signal(signal.SIGKILL)

    @property
    def process_id(self) -> int | None:
        """Of the program; None when it is no more."""
        return None if self._handle is None else _process_id(self._handle)

    def starved_s(self) -> float:
        """Since it was started: how long its threads that live waited for a core, by the one that waited longest."""
        waited_ns = [0]
        with contextlib.suppress(OSError):  # it, or a thread of it, ended meanwhile; or the kernel does not count
            for task in Path(f"/proc/{self.process_id}/task").iterdir():
                waited_ns.append(int((task / "schedstat").read_text().split()[1]))
        return max(waited_ns) / 1e9

    def hasten(self) -> None:
        """Lets the program's threads go before all ordinary ones of this host, as far as the host permits."""
        if self._handle is not None:
            scheduling.hasten(_process_id(self._handle))

    def wait(self, timeout_s: float) -> End | None:
        """How the program ended, or None if it still runs after that time."""
        deadline = time.monotonic() + timeout_s
        while not {"exit", "signal"} & self._facts.keys():
            if not self._read(deadline - time.monotonic()):
                if time.monotonic() < deadline:
                    return End()
                return None
        return End(self._facts.get("exit"), self._facts.get("signal"))

    def close(self) -> None:
        """Ends the program and all that it started. They are dying when this returns; the zygote waits for the rest."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._threads is not None:
            os.close(self._threads[1])
            self._threads = None
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)
        self._zygote.depart(self._lifeline)

    def _signal(self, number: int) -> None:
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def _read(self, timeout_s: float) -> bool:
        """Takes in the next message. False: the time is up, or there will be none any more."""
        if self._closed or not _readable(self._lifeline, timeout_s):
            return False
        try:
            packet, handles, _, _ = socket.recv_fds(self._lifeline, MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        if handles:
            self._handle = handles[0]
        if packet:
            self._facts.update(json.loads(packet))
        return bool(packet)


@dataclass(frozen=True)
class Imports:
    """What a zygote has imported, so that its children need not."""

    program: str = ""
    """Module whose `main(settings)` is the program of children that have no argv."""
    modules: tuple[str, ...] = ()
    """Imported after `path` was set. None may start a thread."""
    path: tuple[str, ...] = ()
    """Where modules are sought; empty means the standard library only."""


class Zygote:
    """A warm process that forks sandboxed ones, and outlives them. Threads may share it.

    Raises:
        HostFaultError: it cannot be started.
    """

    def __init__(self, imports: Imports = Imports(), environment: Mapping[str, str] | None = None) -> None:
        self._imports = imports
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._departing: list[socket.socket] = []
        self._process, self._control = self._launch()

    def start(
        self,
        confinement: Confinement,
        *,
        argv: Sequence[str] | None = None,
        program: Mapping[str, Any] | None = None,
        keep: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
    ) -> Sandboxed:
        """Starts `argv`, or where there is none the zygote's program with `program` as its settings. Returns before it
        is up.

        Nothing is inherited but the descriptors in `keep`, under their own numbers, and the environment given. A zygote
        that died is started again once.

        Raises:
            HostFaultError: no process can be started.
        """
        spec, descriptors = request(confinement, argv, program, keep, environment, stdout, stderr)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with self._lock:
                self._send(json.dumps(spec).encode(), [theirs.fileno(), *descriptors])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Sandboxed(ours, self)

    def _send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        for last in (False, True):
            try:
                socket.send_fds(self._control, [packet], descriptors)
                return
            except OSError as error:
                if last or not isinstance(error, ConnectionError):
                    raise HostFaultError(f"sandbox: cannot start a process ({error}); free memory") from None
            self._end()
            self._process, self._control = self._launch()

    def _launch(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = json.dumps({"control": theirs.fileno(), **asdict(self._imports)})
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BOOT, str(REPOSITORY), settings],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise HostFaultError(f"sandbox: cannot start a process ({error}); free memory") from None
        finally:
            theirs.close()
        return process, ours

    @property
    def process_id(self) -> int:
        """The zygote's own; a new one after it had to be started again."""
        return self._process.pid

    def failure(self) -> str:
        """Why the zygote does not serve, as far as it could say; empty while it may."""
        for _ in range(2):  # a reset is told first, and then what had been said before it
            with contextlib.suppress(OSError):
                packet = self._control.recv(MAX_PACKET_BYTES, socket.MSG_DONTWAIT | socket.MSG_PEEK)
                return str(json.loads(packet).get("error", "")) if packet else "its zygote died"
        return ""

    def depart(self, lifeline: socket.socket) -> None:
        """Takes over a lifeline, to wait later for its other end to close."""
        with self._lock:
            self._departing = [one for one in self._departing if not _ended(one, 0.0)]
            self._departing.append(lifeline)
            crowded = len(self._departing) > MAX_DEPARTING
        if crowded:
            self.settle()

    def settle(self, timeout_s: float = END_TIMEOUT_S) -> bool:
        """Waits until nothing is left of what was closed; returns whether that is so."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._departing = [one for one in self._departing if not _ended(one, deadline - time.monotonic())]
            return not self._departing

    def close(self) -> None:
        """Ends all that it started, and the zygote; returns once nothing of them is left. Idempotent."""
        self.settle()
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Single(Zygote):
    """A zygote for one child: it goes with it, and its close waits for both."""

    def depart(self, lifeline: socket.socket) -> None:
        super().depart(lifeline)
        self.close()


def start(
    confinement: Confinement,
    *,
    argv: Sequence[str] | None = None,
    program: Mapping[str, Any] | None = None,
    keep: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> Sandboxed:
    """As `Zygote.start`, with a zygote for this one process; its `close` returns once nothing of it is left."""
    zygote = _Single(Imports() if argv is not None else Imports(program=RUNNER), environment)
    try:
        return zygote.start(
            confinement,
            argv=argv,
            program=program,
            keep=keep,
            environment=environment,
            stdout=stdout,
            stderr=stderr,
        )
    except BaseException:
        zygote.close()
        raise


def _ended(lifeline: socket.socket, timeout_s: float) -> bool:
    """Whether the other end is closed, within that time; then this end is closed too."""
    deadline = time.monotonic() + timeout_s
    while _readable(lifeline, deadline - time.monotonic()):
        try:
            packet, handles, _, _ = socket.recv_fds(lifeline, MAX_PACKET_BYTES, 1)
        except OSError:
            packet, handles = b"", []
        for handle in handles:
            os.close(handle)
        if not packet:
            lifeline.close()
            return True
    return False


def _readable(lifeline: socket.socket, timeout_s: float) -> bool:
    """Whether there is a message, or the end, within that time. `select` would refuse descriptors above 1023."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _process_id(handle: int) -> int:
    """The number by which this process knows the one behind a handle; -1 when it has ended."""
    for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return -1
