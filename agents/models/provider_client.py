"""The search's end of the provider process: many threads, one socket, and a process that may die at any time."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from agents.errors import AnswerLostError, ModelUnavailableError, RequestRefusedError
from agents.models.keys import Keys
from agents.provider.wire import MAX_FRAME_BYTES, PREFIX, READY, Order, Reply, frame
from gristmill import records
from gristmill.child_process import die_with_parent
from gristmill.errors import MalformedRecordError

CHECKOUT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
"""litellm takes 4 seconds to import, and the machine may be busy."""
GRACE_S = 15.0
"""How long after an order's own time-out its reply is waited for."""
SILENCE_S = 60.0
"""A process that owes such a reply and said nothing at all for so long is hung, and not just busy."""
SEND_TIMEOUT_S = 10
MAX_DEATHS = 5
"""In a row, without an answer between them: then the process is not started again."""
FIRST_PAUSE_S = 0.1
"""Before the second start; doubled with each one."""
INHERITED = ("PATH", "LANG", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""All that the process gets of the environment, in either case, besides the keys."""


@dataclass
class _Waiting:
    """A thread waits for a reply."""

    done: threading.Event = field(default_factory=threading.Event)
    reply: Reply | None = None
    """None after `done`: the process died."""


class _Link:
    """One life of the process."""

    def __init__(self, python: Path, keys: Keys) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        self._sending = threading.Lock()
        self.waiting: dict[int, _Waiting] = {}
        self.heard_s = time.monotonic()
        """When its last reply came."""
        try:
            self.process = subprocess.Popen(
                [str(python), "-P", "-m", "agents.provider", str(theirs.fileno()), str(keys.descriptor)],
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # whatever its libraries would print may hold what must not be logged
                pass_fds=(theirs.fileno(), keys.descriptor),
                start_new_session=True,  # Ctrl-C is ours to deal with
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - it takes no lock
            )
        except OSError as error:
            self._control.close()
            raise ModelUnavailableError(f"the provider process: {error.strerror} ({python})") from None
        finally:
            theirs.close()

    def send(self, order: Order) -> None:
        """A frame that went out in part would garble all later ones, so the process ends with it."""
        content = frame(order)
        if len(content) > MAX_FRAME_BYTES:
            raise RequestRefusedError(f"a request of {len(content) >> 20} MiB is too large to be sent")
        try:
            with self._sending:
                self._control.sendall(content)
        except OSError:
            self.kill()  # whoever waits is told when the socket closes
        except BaseException:
            self.kill()
            raise

    def receive(self, timeout_s: float | None = None) -> Reply | None:
        """The next reply; None at the end of the process, or when it sends what is none."""
        self._control.settimeout(timeout_s)
        try:
            prefix = self._exactly(PREFIX.size)
            return records.parse(Reply, self._exactly(*PREFIX.unpack(prefix)))
        except (OSError, EOFError, MalformedRecordError):
            return None

    def kill(self) -> None:
        self.process.kill()

    def end(self) -> str:
        """Reaps the process and says how it ended."""
        self.kill()
        code = self.process.wait()
        self._control.close()
        if code == -signal.SIGKILL:
            return "it was killed"
        return f"it died of signal {-code}" if code < 0 else f"it exited with {code}"

    def _exactly(self, size: int) -> bytes:
        if size > MAX_FRAME_BYTES:
            raise EOFError
        content = bytearray()
        while len(content) < size:
            piece = self._control.recv(min(size - len(content), 1 << 20))
            if not piece:
                raise EOFError
            content += piece
        return bytes(content)


class ProviderClient:
    """Starts the process at once and whenever it has died; `close` ends it. Thread-safe."""

    def __init__(self, python: Path, keys: Keys) -> None:
        self._python = python
        self._keys = keys
        self._changed = threading.Condition()
        self._link: _Link | None = None
        """The process that takes orders now."""
        self._starting: _Link | None = None
        self._closed = False
        self._gone = ""
        """Why it will not be started again."""
        self._numbers = itertools.count(READY + 1)
        # The kernel ends the process with the thread that started it, so that is one that lasts as long as this object.
        self._tender = threading.Thread(target=self._tend, name="provider process", daemon=True)
        self._tender.start()

    def __enter__(self) -> ProviderClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """Of the process that takes orders now."""
        link = self._link
        return link.process.pid if link else None

    def ask(self, order: Order, timeout_s: float) -> Reply:
        """Sends an order, numbered here, and waits for its reply.

        Raises:
            AnswerLostError: the process died meanwhile, or hangs.
            ModelUnavailableError: it is not up in time.
            RequestRefusedError: it cannot be started (any more), or was ended.
        """
        deadline = time.monotonic() + timeout_s
        waiting = _Waiting()
        link, number = self._registered(waiting, deadline)
        try:
            link.send(replace(order, id=number))
            if not waiting.done.wait(max(deadline - time.monotonic(), 0) + GRACE_S):
                if time.monotonic() - link.heard_s > SILENCE_S:
                    link.kill()
                raise AnswerLostError(f"the provider process did not answer within {timeout_s + GRACE_S:g} s")
        finally:
            link.waiting.pop(number, None)
            if not waiting.done.is_set():
                link.send(Order(number, cancelled=True))
        if waiting.reply is None:
            raise AnswerLostError("the provider process ended while it worked on this call")
        return waiting.reply

    def close(self) -> None:
        """Ends the process; calls in flight end with ModelUnavailableError."""
        with self._changed:
            self._closed = True
            for link in filter(None, (self._link, self._starting)):
                link.kill()
            self._changed.notify_all()
        self._tender.join()

    def _registered(self, waiting: _Waiting, deadline: float) -> tuple[_Link, int]:
        with self._changed:
            self._changed.wait_for(self._decided, max(deadline - time.monotonic(), 0))
            if self._closed or self._gone:
                raise RequestRefusedError(self._gone or "the provider process was ended")
            if self._link is None:
                raise ModelUnavailableError("the provider process was not up in time")
            number = next(self._numbers)
            self._link.waiting[number] = waiting
            return self._link, number

    def _decided(self) -> bool:
        return self._link is not None or self._closed or bool(self._gone)

    def _tend(self) -> None:
        deaths = 0
        while not self._closed and not self._gone:
            answered, how = self._live()
            deaths = 1 if answered else deaths + 1
            with self._changed:
                if deaths >= MAX_DEATHS and not self._gone:
                    self._gone = f"the provider process died {deaths} times in a row; the last time {how}"
                self._changed.notify_all()
                if not self._gone:
                    self._changed.wait_for(lambda: self._closed, FIRST_PAUSE_S * 2 ** (deaths - 1))

    def _live(self) -> tuple[bool, str]:
        """One life of the process, from start to end: whether it answered anything, and how it ended."""
        try:
            link = _Link(self._python, self._keys)
        except ModelUnavailableError as error:
            self._gone = str(error)
            return False, ""
        with self._changed:
            self._starting = link
            if self._closed:
                link.kill()
        answered = self._up(link) and self._dispatch(link)
        with self._changed:
            self._link = self._starting = None
            lost, link.waiting = link.waiting, {}
        how = link.end()
        for waiting in list(lost.values()):
            waiting.done.set()
        return answered, how

    def _up(self, link: _Link) -> bool:
        ready = link.receive(START_TIMEOUT_S)
        if ready is None:
            return False
        with self._changed:
            if ready.failure is not None:
                self._gone = f"the provider process at {self._python} cannot work: {ready.failure.message}"
                return False
            self._link = link
            self._changed.notify_all()
        return True

    def _dispatch(self, link: _Link) -> bool:
        answered = False
        while (reply := link.receive()) is not None:
            answered = True
            link.heard_s = time.monotonic()
            waiting = link.waiting.pop(reply.id, None)
            if waiting is not None:
                waiting.reply = reply
                waiting.done.set()
        return answered


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name.upper() in INHERITED}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
