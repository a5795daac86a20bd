"""The judge's side of a sandboxed process: start it, freeze it, learn how it ended, and leave nothing of it behind.

What walls it in is `confine.py`, which runs in the new process. That process is a watch; its child runs the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import scheduling
from harness.errors import HostFaultError

CONFINE = Path(__file__).parent / "confine.py"
SYSTEM_PATHS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
"""What a program needs of the host to be linked and loaded. Those that are links stay links."""
START_TIMEOUT_S = 60.0
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Resource limits of one sandboxed process and all that it starts."""

    memory_bytes: int = 4096 * MEBIBYTE
    """Address space."""
    cpu_s: int = 300
    files: int = 64
    processes: int = 128
    """Threads included."""
    file_bytes: int = 64 * MEBIBYTE
    scratch_bytes: int = 64 * MEBIBYTE
    """Size of the private /tmp, which is memory."""


@dataclass(frozen=True)
class Confinement:
    """What a sandboxed process may see and use."""

    limits: Limits = Limits()
    visible: tuple[tuple[str, str], ...] = ()
    """Host paths and where they appear, read-only, besides the system's own."""
    proc: bool = False
    nice: int = 0
    cwd: str = "/"
    trusted: bool = False
    """Our own code: no walls, only the watch that ends it with the judge."""


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
    """One sandboxed process. `close` is idempotent and returns once nothing of it is left."""

    def __init__(self, watch: subprocess.Popen[bytes], lifeline: socket.socket) -> None:
        self._watch = watch
        self._lifeline = lifeline
        self._facts: dict[str, Any] = {}
        self._buffer = b""
        self._handle: int | None = None

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns once the walls stand and the program runs.

        Raises:
            HostFaultError: it did not start in time.
        """
        deadline = time.monotonic() + timeout_s
        while not {"pid", "isolation"} <= self._facts.keys():
            if {"exit", "signal"} & self._facts.keys() or not self._read(deadline - time.monotonic()):
                self.close()
                raise HostFaultError(
                    f"sandbox: no process came up in {timeout_s:.0f} s; `python -I -S {CONFINE.name}` did not start: "
                    "check memory and process limits of this host"
                )

    @property
    def isolation(self) -> tuple[str, ...]:
        """The layers that were active, known after `wait_ready`."""
        return tuple(self._facts.get("isolation", ()))

    def freeze(self) -> None:
        """Stops every thread of the program, wherever it is."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the program with all that it started; its end can still be asked for."""
        self._signal(signal.SIGKILL)

    def hasten(self) -> None:
        """Lets the program's threads go before all ordinary ones of this host, as far as the host permits."""
        scheduling.hasten(self._facts["pid"])

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
        """Ends the program, its watch and everything it started."""
        if self._watch.returncode is None:
            self.kill()
            self._lifeline.close()
            try:
                self._watch.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._watch.kill()
                self._watch.wait()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _signal(self, number: signal.Signals) -> None:
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                signal.pidfd_send_signal(self._handle, number)

    def _read(self, timeout_s: float) -> bool:
        """Takes in one more message; False at the time-out or the end of the stream."""
        ready, _, _ = select.select([self._lifeline], [], [], max(0.0, timeout_s))
        chunk = self._lifeline.recv(4096) if ready else b""
        if not chunk:
            return False
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._facts.update(json.loads(line))
        if "pid" in self._facts and self._handle is None:  # now, while the process surely is this one
            with contextlib.suppress(ProcessLookupError):
                self._handle = os.pidfd_open(self._facts["pid"])
        return True


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
    """Starts `argv`, or where there is none the runner with `program` as its settings. Returns before it is up.

    Nothing is inherited but the descriptors in `keep` and the environment given.

    Raises:
        HostFaultError: no process can be started.
    """
    ours, theirs = socket.socketpair()
    spec = {
        "lifeline": theirs.fileno(),
        "keep": list(keep),
        "argv": list(argv) if argv is not None else None,
        "program": dict(program or {}),
        "environment": dict(environment or {}),
        "visible": [[path, path] for path in SYSTEM_PATHS] + [list(pair) for pair in confinement.visible],
        "proc": confinement.proc,
        "nice": confinement.nice,
        "trusted": confinement.trusted,
        "cwd": confinement.cwd,
        "limits": asdict(confinement.limits),
    }
    try:
        watch = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CONFINE), json.dumps(spec)],
            pass_fds=(theirs.fileno(), *keep),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment or {}),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise HostFaultError(f"sandbox: cannot start a process ({error}); free memory or raise its limits") from None
    finally:
        theirs.close()
    return Sandboxed(watch, ours)
