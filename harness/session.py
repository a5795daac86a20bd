"""One runner as the judge sees it: requests, answers, the clock around them, and what went wrong.

The clock is read here, in the judge. A runner is frozen whenever it is not answering a request, so that nothing which
it left running can finish late, or disturb the other side of a pair.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import select
import socket
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

from harness import runner, sandbox, scheduling
from harness.arena import Numbers
from harness.errors import BaselineError, HostFaultError
from harness.native import Native
from harness.sandbox import MEBIBYTE, Confinement, End, Filter, Imports, Limits, Sandboxed, Zygote
from harness.shared_file import SharedFile
from kernels.candidate import Candidate, Language
from kernels.verdict import FailingCase, Mismatch, Status

REPOSITORY = Path(__file__).resolve().parent.parent
BASELINE_RUNNER = Path(__file__).with_name("baseline_runner.py")
BASELINE_LOAD_S = 60.0
LIMITS = Limits(memory_bytes=64 << 30, scratch_bytes=16 * MEBIBYTE, file_bytes=16 * MEBIBYTE)
"""Of a candidate's runner: address space for calls whose rows lie gigabytes apart, little memory of its own."""
MAX_PACKED_BYTES = 2 << 30
SOCKET_ROOM_BYTES = 1 << 14
"""What a socket takes in though nobody reads it."""
STARVED_SHARE = 3.0
"""Of a deadline, by which it moves at most where the host's other processes had the cores."""
END_S = 10.0
"""How long a killed runner may take to be gone."""
SETTLE_S = 1.0
"""How long to wait for the cause of a runner's death to be known."""
REST_LOOK_S = 0.001
REST_LOOKS = 5
"""In a row in which no thread wants a core: one that works most of the time sleeps in between as well."""
REST_MOST_S = 0.3
"""Of processor time, until a runner's threads are at rest. Libraries' wait awake for up to a tenth of a second
before they sleep.
"""
RESTLESS = (
    f"its threads worked or waited awake for {REST_MOST_S} s after all calls had returned: an engine needs its cores; "
    "let them sleep until they are called"
)


class Finding(Exception):  # noqa: N818  it is a finding about a candidate, not an error of ours
    """What is wrong with a candidate: how it ended, or where its answers differ. It leaves the judge as a verdict."""

    def __init__(
        self,
        status: Status,
        reason: str,
        mismatches: tuple[Mismatch, ...] = (),
        failing: tuple[FailingCase, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.mismatches = mismatches
        self.failing = failing


class Session:
    """A conversation with one runner, candidate's or baseline's."""

    def __init__(self, process: Sandboxed, channel: socket.socket, outputs: SharedFile | None) -> None:
        self._process = process
        self._channel = channel
        self.outputs = outputs
        self.used_bytes = 0
        """Of the outputs, as far as plans reached."""
        self._hastened = False
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN | select.POLLHUP)

    def wait_ready(self) -> None:
        """Returns once the runner's walls stand.

        Raises:
            HostFaultError: they do not.
        """
        self._process.wait_ready()

    @property
    def isolation(self) -> tuple[str, ...]:
        """The layers around the runner."""
        return self._process.isolation

    def load(self, payload: bytes, timeout_s: float) -> None:
        """Loads what is to be run.

        Raises:
            Finding: as `request`.
        """
        self.request(runner.LOAD, payload, timeout_s)

    def plan(self, payload: bytes, timeout_s: float, *, output_bytes: int = 0) -> None:
        """Maps the buffer sets of a workload, whose outputs reach that far into their file."""
        self.used_bytes = max(self.used_bytes, output_bytes)
        self.request(runner.PLAN, payload, timeout_s)

    def setup(self, numbers: Numbers, timeout_s: float) -> int:
        """Runs the declared setup phase for these sets; returns nanoseconds."""
        return self.request(runner.SETUP, numbers.tobytes(), timeout_s)

    def run(self, pool: Numbers, calls: int, seed: int, timeout_s: float) -> int:
        """Calls so many sets of the pool, each once, as the chain from that seed says; returns nanoseconds by the
        judge's clock.
        """
        head = runner.RUN_HEAD.pack(seed, calls, len(pool))
        return self.request(runner.RUN, head + pool.tobytes(), timeout_s)

    def review(self, timeout_s: float) -> None:
        """Compares all settings of the runner's process with those it had when the candidate was loaded.

        Raises:
            Finding: one was left changed; or as `request`.
        """
        self.request(runner.REVIEW, b"", timeout_s)

    def rest(self) -> None:
        """Lets the runner go on with nothing to do, until it does nothing. Threads may wait awake for a while.

        Raises:
            Finding: they do so without end, and would take their engine's cores.
        """
        pid = self._process.process_id
        try:
            if pid is None or len(os.listdir(f"/proc/{pid}/task")) == 1:  # noqa: PTH208 pathlib takes longer
                return
            self._process.thaw()
            most_ns = scheduling.worked_ns(pid) + REST_MOST_S * 1e9
            calm = 0
            while scheduling.worked_ns(pid) < most_ns:
                time.sleep(REST_LOOK_S)
                calm = 0 if scheduling.wants_a_core(pid) else calm + 1
                if calm == REST_LOOKS:
                    self._process.freeze()
                    return
        except OSError:
            self._process.freeze()  # a thread has ended meanwhile
            return
        self._process.kill()
        raise Finding(Status.INCORRECT, RESTLESS)

    @property
    def process_id(self) -> int | None:
        """Of the runner; None when it is no more."""
        return self._process.process_id

    def hasten(self) -> None:
        """Lets the runner's threads go before all ordinary ones of this host, as far as the host permits; so do those
        that they start later.
        """
        if not self._hastened:
            self._process.hasten()
            self._hastened = True

    def request(self, kind: int, payload: bytes, timeout_s: float) -> int:
        """Sends one request, waits for its answer, freezes the runner, and returns the nanoseconds in between.

        Raises:
            Finding: the runner died, hung, declined, or spoke out of turn.
        """
        channel = self._channel
        if self._poll.poll(0):
            self._answer_out_of_turn()
        nonce = secrets.randbits(64)
        message = runner.HEADER.pack(kind, len(payload), nonce) + payload
        channel.settimeout(timeout_s)
        try:
            # Thawing and stopping are on the clock: nothing that a runner left running gets ahead, or ends late. To
            # stop each thread is not: a side with more of them would take longer. A message that is there when the
            # runner thaws wakes it once instead of twice.
            fits = len(message) <= SOCKET_ROOM_BYTES
            start_ns = time.perf_counter_ns()
            if fits:
                channel.sendall(message)
            self._process.thaw()
            if not fits:
                channel.sendall(message)
            header = self._wait(timeout_s)
            self._process.stop()
            elapsed_ns = time.perf_counter_ns() - start_ns
            self._process.freeze()
        except OSError:
            raise self._death() from None
        if not header:
            raise self._death()
        self._read_answer(header, nonce)
        return elapsed_ns

    def _wait(self, timeout_s: float) -> bytes:
        """The head of an answer. Time in which the runner waited for a core that others had is given back, once."""
        try:
            return self._channel.recv(runner.HEADER.size)
        except TimeoutError:
            starved_s = min(self._process.starved_s(), STARVED_SHARE * timeout_s)
        if starved_s > 0:
            self._channel.settimeout(starved_s)
            with contextlib.suppress(TimeoutError):
                return self._channel.recv(runner.HEADER.size)
        self._process.kill()
        raise Finding(Status.TIMED_OUT, f"no answer within {timeout_s:.1f} s")

    def _read_answer(self, header: bytes, nonce: int) -> None:
        if len(header) != runner.HEADER.size:
            raise _forged()
        kind, size, echoed = runner.HEADER.unpack(header)
        if echoed != nonce or kind not in (runner.DONE, runner.REFUSED, runner.FAILED) or size > runner.MAX_TEXT_BYTES:
            raise _forged()
        if kind == runner.DONE:
            return
        self._process.thaw()
        try:
            text = runner.receive(self._channel, size).decode(errors="replace")
        except (OSError, EOFError):
            raise self._death() from None
        self._process.freeze()
        status = Status.CRASHED if kind == runner.FAILED else Status.INCORRECT
        raise Finding(status, text)

    def _answer_out_of_turn(self) -> None:
        try:
            waiting = self._channel.recv(1, socket.MSG_PEEK)
        except OSError:
            waiting = b""
        raise _forged() if waiting else self._death()

    def _death(self) -> Finding:
        self._process.thaw()
        end = self._process.wait(SETTLE_S)
        self._process.kill()
        if end == End():
            raise HostFaultError("sandbox: the process that watches over runners died; is this host out of memory?")
        return Finding(Status.CRASHED, f"the candidate's process {end or 'closed its channel'}")

    def kill(self) -> None:
        """Ends the runner, and all that it started, at once."""
        self._process.kill()

    def close(self) -> None:
        """Likewise, and returns when nothing of it is left."""
        self._channel.close()
        self._process.kill()
        self._process.wait(END_S)
        self._process.close()


def _forged() -> Finding:
    return Finding(Status.CHEATED, "wrote to the judge's channel: an answer came that no request had asked for")


@dataclass(frozen=True)
class RunnerKind:
    """What distinguishes runners before they have loaded anything: these are started ahead."""

    language: Language
    threads: int


def start_zygote(kind: RunnerKind) -> Zygote:
    """From which runners of that kind are forked, with their imports done.

    Raises:
        HostFaultError: it cannot be started.
    """
    imports = Imports()
    if kind.language is Language.PYTHON:
        site = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
        imports = Imports(program=sandbox.RUNNER, modules=("torch",), path=(*_standard_path(), *site))
    return Zygote(imports, environment(kind.threads))


def start_candidate_session(
    kind: RunnerKind, zygote: Zygote, native: Native, inputs: SharedFile, outputs: SharedFile
) -> Session:
    """Starts a sandboxed runner. It comes up by itself; `wait_ready` waits for it."""
    ours, theirs = socket.socketpair()
    keep = (theirs.fileno(), inputs.reader, outputs.reader)
    variables = environment(kind.threads)
    start = _start_python if kind.language is Language.PYTHON else _start_native
    try:
        process = start(kind, zygote, native, keep, variables)
    finally:
        theirs.close()
    return Session(process, ours, outputs)


def _start_native(
    kind: RunnerKind, zygote: Zygote, native: Native, keep: tuple[int, int, int], variables: dict[str, str]
) -> Sandboxed:
    confinement = Confinement(limits=LIMITS, visible=((str(native.runner), "/runner"),), filter=Filter.HANDED_OVER)
    return zygote.start(confinement, argv=("/runner", *map(str, keep)), keep=keep, environment=variables)


def _start_python(
    kind: RunnerKind, zygote: Zygote, native: Native, keep: tuple[int, int, int], variables: dict[str, str]
) -> Sandboxed:
    program = {
        "channel": keep[0],
        "inputs_fd": keep[1],
        "outputs_fd": keep[2],
        "threads": kind.threads,
        "library": "/arena.so",
    }
    visible = (*_python_paths(), (str(native.library), "/arena.so"))
    confinement = Confinement(limits=LIMITS, visible=visible, proc=True)
    return zygote.start(confinement, program=program, keep=keep, environment=variables)


THREADING = {"GOMP_SPINCOUNT": "100000"}
"""On both sides: OpenMP's threads wait awake for a fraction of a millisecond. Threads that fall asleep between two
calls of a batch make its time a matter of luck, and threads that never sleep hinder each other where cores are few.
"""


def environment(threads: int) -> dict[str, str]:
    """All that a runner gets to see of the environment: the same for candidates and baselines."""
    return {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C",
        **THREADING,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }


def _standard_path() -> list[str]:
    return [sysconfig.get_path("stdlib"), str(Path(sysconfig.get_path("stdlib")) / "lib-dynload")]


def _python_paths() -> tuple[tuple[str, str], ...]:
    paths = {sys.base_prefix, sys.prefix} - {"/usr"}
    return (*((path, path) for path in sorted(paths)), ("/sys/devices/system/cpu", "/sys/devices/system/cpu"))


def start_baseline_session(threads: int, native: Native, inputs: SharedFile) -> Session:
    """Starts the process in which baselines run: our own code, so behind no walls. It comes up by itself.

    Raises:
        HostFaultError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    settings = {
        "channel": theirs.fileno(),
        "inputs_fd": inputs.reader,
        "threads": threads,
        "library": str(native.library),
    }
    variables = environment(threads) | {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *(path for path in sys.path if path)]),
        "HOME": os.environ.get("HOME", "/"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    try:
        process = sandbox.start(
            Confinement(trusted=True),
            argv=(sys.executable, str(BASELINE_RUNNER), json.dumps(settings)),
            keep=(theirs.fileno(), inputs.reader),
            environment=variables,
        )
    finally:
        theirs.close()
    return Session(process, ours, None)


def as_baseline_error(name: str, failure: Finding) -> BaselineError:
    """A baseline's failure is the host's fault, not the candidate's."""
    return BaselineError(
        f"baseline {name}: {failure.reason}; check that torch works here, and its compiler for `compile`"
    )


def load_payload(candidate: Candidate, object_path: Path | None) -> bytes:
    """The LOAD of a candidate: what was built, or its sources where nothing is built."""
    head = runner.LOAD_HEAD.pack(MAX_PACKED_BYTES if candidate.needs_setup else 0)
    if object_path is not None:
        return head + object_path.read_bytes()
    files = {name: text.encode(errors="replace") for name, text in candidate.files.items()}
    return head + json.dumps({name: base64.b64encode(content).decode() for name, content in files.items()}).encode()


def baseline_payload(operator: str, name: str) -> bytes:
    """The LOAD of a baseline."""
    return json.dumps({"operator": operator, "baseline": name}).encode()
