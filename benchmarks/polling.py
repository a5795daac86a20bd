"""`python -m benchmarks.polling`: what it costs a store that nothing changes, with a thousand hosts that ask whether.

One host polls through a relay that notes each request as it goes to the store. Then a thousand hosts, each with its own
cache, connection and schedule, poll a SeaweedFS from one process, and the store's processor time is read for minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks import fleet
from benchmarks.figures import Figure, Outcome, report
from benchmarks.fleet import Address
from cli.progress import ProgressLine
from gristmill.dispatch import Dispatcher
from gristmill.errors import GristmillError
from gristmill.generation import Generation
from gristmill.host import Host
from gristmill.pull import Puller
from gristmill.store import open_store
from harness.significance import student_quantile
from registry.embedded_store import BUCKET, EmbeddedStore, running_or_started
from registry.publication import publish
from tests.registry.world import CANARY

COMMAND = "python -m benchmarks.polling"
ISSUE = 5
HOSTS, INTERVAL_S, MINUTES = 1000, 15.0, 4.0
TARGET_CORE = 0.20
POLLS = 20
"""Of the one host whose requests are noted."""
STACK_BYTES = 256 << 10
_PLACE = re.compile(r"/\S+")
"""What differs between hosts in what they say of a failure."""
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Request:
    """One, as it went to the store."""

    method: str
    path: str
    conditional: bool
    status: int


@dataclass(frozen=True)
class Window:
    """One polling interval of all hosts."""

    cpu_s: float
    elapsed_s: float
    polls: int
    failures: int = 0
    """Polls that took nothing because something went wrong."""


@dataclass(frozen=True)
class Course:
    """What was seen."""

    requests: tuple[Request, ...]
    """Of `POLLS` polls without news."""
    idle: tuple[Window, ...]
    """While nobody polled."""
    busy: tuple[Window, ...]
    failures: dict[str, int] = field(default_factory=dict)
    """Reasons to how many polls failed so, those before the first window included."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=HOSTS, help="in one process; only a full run counts")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of measuring; only a full run counts")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mill-") as folder, running_or_started(Path(folder) / "embedded") as store:
        course = run(Path(folder), store, arguments.hosts, max(2, round(arguments.minutes * 60 / INTERVAL_S)))
    return report(
        figures(course), keep=not arguments.dry_run and (arguments.hosts, arguments.minutes) == (HOSTS, MINUTES)
    )


def run(folder: Path, store: EmbeddedStore, hosts: int, windows: int) -> Course:
    """Publishes one kernel, then counts and measures."""
    at = Address(store.url, store.environ)
    world = fleet.open_registry(folder, at)
    artifact, files = fleet.new_artifact(fleet.OPERATOR, (folder / "kernel.so").read_bytes())
    publish(world.store, world.keyring, CANARY, [artifact], files, fleet.taken)
    requests = noted_polls(folder, store)
    with ProgressLine(sys.stderr) as progress:
        progress.show("the store alone")
        idle = [measured(store.pid, Counts(), INTERVAL_S) for _ in range(2)]
        with fleet_of(folder, at, hosts, progress) as counts:
            busy = []
            for number in range(windows):
                busy.append(measured(store.pid, counts, INTERVAL_S))
                progress.show(f"{number + 1} of {windows} intervals, {busy[-1].polls} polls in the last")
            return Course(requests, tuple(idle), tuple(busy), dict(counts.reasons))


class Counts:
    """Polls of all hosts. Increments are plain: a poll in a thousand may be missed."""

    def __init__(self) -> None:
        self.polls = 0
        self.reasons: Counter[str] = Counter()

    @property
    def failures(self) -> int:
        return self.reasons.total()


class CountedPuller:
    """The puller of one host, and how often it was asked."""

    def __init__(self, puller: Puller, counts: Counts) -> None:
        self._puller = puller
        self._counts = counts
        self.settled = False
        """Whether a poll has succeeded."""

    def poll(self) -> Generation | None:
        self._counts.polls += 1
        try:
            found = self._puller.poll()
            self.settled = True
            return found
        except (GristmillError, OSError) as error:
            self._counts.reasons[_PLACE.sub("...", str(error))] += 1
            raise

    def last_good(self) -> Generation | None:
        return self._puller.last_good()


def opened(folder: Path, at: Address, cache: Path) -> Puller:
    """A host's puller with a connection of its own."""
    root = (folder / "root.json").read_bytes()
    return Puller(open_store(at.url, at.environ), root, CANARY.fleet, CANARY.model, CANARY.hardware, CANARY.name, cache)


@contextlib.contextmanager
def fleet_of(folder: Path, at: Address, count: int, progress: ProgressLine) -> Iterator[Counts]:
    """Hosts that have all taken what is current, and poll by their own schedules."""
    template = folder / "host"
    opened(folder, at, template).poll()
    counts = Counts()

    def made(number: int) -> CountedPuller:
        cache = folder / "hosts" / str(number)
        shutil.copytree(template, cache)
        return CountedPuller(opened(folder, at, cache), counts)

    channels = [made(number) for number in range(count)]
    hosts = [
        Host(channel, Dispatcher(CANARY.name, CANARY.hardware), lambda event: None, INTERVAL_S) for channel in channels
    ]
    before = threading.stack_size(STACK_BYTES)
    try:
        for host in hosts:
            host.start()
        while (settled := sum(channel.settled for channel in channels)) < count:  # the first poll reads everything
            progress.show(f"{settled} of {count} hosts have polled")
            time.sleep(0.1)
        yield counts
    finally:
        threading.stack_size(before)
        for host in hosts:
            host.stop()


def measured(pid: int, counts: Counts, seconds: float) -> Window:
    """The processor time that a process takes in a window, user and system."""
    began, polls, failures, cpu_s = time.monotonic(), counts.polls, counts.failures, processor_s(pid)
    time.sleep(seconds)
    used_s, elapsed_s = processor_s(pid) - cpu_s, time.monotonic() - began
    return Window(used_s, elapsed_s, counts.polls - polls, counts.failures - failures)


def processor_s(pid: int) -> float:
    """What a process has used so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def noted_polls(folder: Path, store: EmbeddedStore) -> tuple[Request, ...]:
    """What reaches the store of so many polls without news."""
    with relay(store.port) as (port, requests):
        at = Address(f"s3://{BUCKET}?endpoint={quote(f'http://127.0.0.1:{port}', safe=':/')}", store.environ)
        puller = opened(folder, at, folder / "noted")
        puller.poll()
        requests.clear()
        for _ in range(POLLS):
            puller.poll()
        return tuple(requests)


@contextlib.contextmanager
def relay(target_port: int) -> Iterator[tuple[int, list[Request]]]:
    """A port that passes reads on to another, and a list of them."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            onward = http.client.HTTPConnection("127.0.0.1", target_port)
            onward.putrequest("GET", self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                onward.putheader(name, value)
            onward.endheaders()
            answer = onward.getresponse()
            content = answer.read()
            requests.append(Request("GET", self.path, "If-None-Match" in self.headers, answer.status))
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            if answer.status != http.HTTPStatus.NOT_MODIFIED:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            onward.close()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], requests
        finally:
            server.shutdown()
            thread.join()


def figures(course: Course) -> list[Figure]:
    """The two rows."""
    per_poll = len(course.requests) / POLLS
    plain = [request for request in course.requests if not (request.conditional and request.status == 304)]
    shares = [window.cpu_s / window.elapsed_s for window in course.busy]
    idle = statistics.mean(window.cpu_s / window.elapsed_s for window in course.idle)
    mean = statistics.mean(shares)
    reach = student_quantile(0.025, len(shares) - 1) * statistics.stdev(shares) / math.sqrt(len(shares))
    polls = sum(window.polls for window in course.busy)
    seconds = sum(window.elapsed_s for window in course.busy)
    each_ms = 1e3 * (sum(window.cpu_s for window in course.busy) - idle * seconds) / max(1, polls)
    failed = sum(window.failures for window in course.busy)
    before = sum(course.failures.values()) - failed
    reasons = "".join(f"; {number} x {reason}" for reason, number in sorted(course.failures.items()))
    note = (
        f"{len(shares)} intervals, median {100 * statistics.median(shares):.1f} %; {polls / seconds:.1f} polls/s of "
        f"{each_ms:.2f} ms, {failed} failed; the store alone {100 * idle:.1f} %; each a real Host with its own "
        f"thread, schedule, cache and connection; {before} failed before, while all started at once{reasons}"
    )
    return [
        Figure(
            "no-change poll: requests at the store",
            ISSUE,
            "one, conditional",
            "requests",
            COMMAND,
            per_poll,
            verdict=Outcome.MET if per_poll == 1 and not plain else Outcome.MISSED,
            note=f"{POLLS} polls through a relay before SeaweedFS; {len(course.requests) - len(plain)} requests with "
            "If-None-Match, answered 304",
        ),
        Figure(
            f"{HOSTS:,} hosts polling every {INTERVAL_S:.0f} s from one process: CPU of the store",
            ISSUE,
            f"under {100 * TARGET_CORE:.0f}",
            "% of a core",
            COMMAND,
            100 * mean,
            (100 * (mean - reach), 100 * (mean + reach)),
            Outcome.MET if mean + reach < TARGET_CORE and not failed else Outcome.MISSED,
            note=note,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
