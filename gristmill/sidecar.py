"""`gristmill-sidecar`: follows a channel into a cache folder, for engines that have no network and no keys.

The engines read the folder through `cache_reader.CacheReader`, and verify all of it again. Standard output has one line
of JSON per event: `started`, `taken`, `poll_failed`, `recovered`, `report_failed`, `warning`, `stopped`. Store
credentials come from the environment. SIGTERM and SIGINT end it; killed at any moment it leaves the cache whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill import __version__, records, sidecar_status
from gristmill.cohort import FOLLOWING
from gristmill.errors import GristmillError, SidecarError
from gristmill.hardware import local_hardware
from gristmill.outbox import Outbox
from gristmill.poll_schedule import PollSchedule
from gristmill.serving.protocol import LineWriter
from gristmill.sidecar_status import BEAT_S, SidecarStatus
from gristmill.store import open_store
from gristmill.trust import Channel

if TYPE_CHECKING:
    from gristmill.generation import Generation
    from gristmill.host import ChannelReader  # loads torch

STOP_S = 5.0
"""How long the end of a poll is waited for, once told to stop."""


@dataclass(frozen=True)
class SidecarSettings:
    """What a sidecar is started with."""

    store: str
    at: Channel
    """Its name may be `auto`."""
    root_file: Path
    cache_dir: Path
    outbox_dir: Path
    """Where engines leave reports for the registry."""
    poll_s: float = 15.0
    tables: tuple[str, ...] = ()
    """Names of the tables that the engines can use; none: all."""


class Sidecar:
    """Polls, and says how it went: on standard output, and in a status file in the cache.

    `poll_once` is for one thread; `beat` for any.
    """

    def __init__(self, reader: ChannelReader, outbox: Outbox, at: Channel, cache_dir: Path, writer: LineWriter) -> None:
        self._reader = reader
        self._outbox = outbox
        self._at = at
        self._writer = writer
        self._path = sidecar_status.status_path(cache_dir, at)
        self._problem = self._report_problem = ""
        self.status = SidecarStatus(str(at), 0, 0, "", True, records.utc_now(), "")

    def start(self) -> None:
        """Says what the cache holds, without network."""
        try:
            self._take(self._reader.last_good())
        except GristmillError as error:
            self._tell_problem(str(error))
        self._write(self.status)

    def poll_once(self) -> None:
        """One look at the channel, then at the outbox. Whatever fails is told, and tried again at the next."""
        try:
            self._take(self._reader.poll())
        except GristmillError as error:
            self._tell_problem(str(error))
        except Exception as error:
            # A bug must not end the polling: the engines would serve an old generation for ever, and silently.
            traceback.print_exc()
            self._tell_problem(f"{type(error).__name__}: {error} (a bug; its traceback is on standard error)")
        else:
            if self._problem:
                self._writer.write("recovered", generation=self.status.generation)
            self._problem = ""
            polls = self.status.polls + 1
            self.status = dataclasses.replace(self.status, problem="", polls=polls, polled_utc=records.utc_now())
        self._write(self.status)
        self.forward()

    def forward(self) -> None:
        """Sends on what the engines have left."""
        try:
            self._outbox.forward()
            self._report_problem = ""
        except GristmillError as error:
            if str(error) != self._report_problem:
                self._report_problem = str(error)
                self._writer.write("report_failed", reason=str(error))

    def beat(self) -> None:
        """Shows that this process lives."""
        try:
            os.utime(self._path)
        except OSError:
            self._write(self.status)

    def stop(self) -> None:
        self._write(dataclasses.replace(self.status, running=False))
        self._writer.write("stopped", generation=self.status.generation)

    def _take(self, generation: Generation | None) -> None:
        if generation is None:
            return
        self.status = dataclasses.replace(self.status, generation=generation.number)
        names = [table.name for table in generation.tables]
        self._writer.write("taken", generation=generation.number, tables=names, objects=len(generation.objects))

    def _tell_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._writer.write("poll_failed", reason=problem)
        self.status = dataclasses.replace(self.status, problem=problem)

    def _write(self, status: SidecarStatus) -> None:
        """A status that can't be written is not worth a crash: engines and probes take its silence for what it is."""
        try:
            sidecar_status.write(self._path, status)
        except OSError as error:
            self._tell_problem(f"{self._path}: {error.strerror}; free some space, or name a folder that can be written")


def opened(settings: SidecarSettings, environ: Mapping[str, str], writer: LineWriter) -> Sidecar:
    """A sidecar that has not contacted anything yet.

    Raises:
        GristmillError: the store's address, the root, or the channel's name.
    """
    from gristmill.pull import Puller

    object_store = open_store(settings.store, environ)
    try:
        root = settings.root_file.read_bytes()
    except OSError as error:
        raise SidecarError(
            f"trusted root {settings.root_file}: cannot be read ({error.strerror}); give the file that the registry's "
            "key ceremony made"
        ) from None
    at = settings.at
    names = frozenset(settings.tables)
    tables = (lambda: names) if names else None
    puller = Puller(object_store, root, at.fleet, at.model, at.hardware, at.name, settings.cache_dir, tables)
    with puller.cache.locked():
        puller.cache.host_id()  # engines that may only read the folder could not make it
    for text in puller.cache.take_warnings():
        writer.write("warning", reason=text)
    return Sidecar(puller, Outbox(settings.outbox_dir, object_store, at), at, settings.cache_dir, writer)


def run(sidecar: Sidecar, poll_s: float, stopped: threading.Event) -> None:
    """Polls at once, and then until told to stop: engines that start along with it wait for the first poll."""
    schedule = PollSchedule(poll_s)

    def loop() -> None:
        sidecar.poll_once()
        pause_s = schedule.first_s()
        while not stopped.wait(pause_s):
            sidecar.poll_once()
            pause_s = schedule.next_s(failed=bool(sidecar.status.problem))
        sidecar.forward()

    sidecar.start()
    polling = threading.Thread(target=loop, name="gristmill-sidecar", daemon=True)
    polling.start()
    while not stopped.wait(BEAT_S) and polling.is_alive():
        sidecar.beat()
    polling.join(STOP_S)
    sidecar.stop()


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="gristmill-sidecar",
        description="Follow a channel into a cache folder that engines on this host read.",
    )
    result.add_argument("--store", default="", help="object store URL; credentials come from the environment")
    result.add_argument("--root-file", type=Path, help="trusted root metadata, which the key ceremony made")
    result.add_argument("--fleet", required=True)
    result.add_argument("--model", required=True, help="the model's name in channels")
    result.add_argument(
        "--hardware", default="", help="hardware key of the engines; this machine's GPU, or its processor"
    )
    result.add_argument("--channel", choices=FOLLOWING, default="stable")
    result.add_argument("--cache-dir", type=Path, required=True, help="folder shared with the engines")
    result.add_argument("--outbox-dir", type=Path, help="where engines leave reports; CACHE_DIR/outbox")
    result.add_argument("--poll-s", type=float, default=15.0, help="seconds between polls; 15")
    result.add_argument("--tables", default="", help="names of the only tables to fetch: rms_norm.float32,...; all")
    result.add_argument("--once", action="store_true", help="poll once and end: 0 if the cache is current")
    result.add_argument("--status", action="store_true", help="say how the sidecar of this cache does: 0 if it is well")
    return result


def main(arguments: list[str] | None = None) -> int:
    """0; 1 if `--status` finds a sidecar that is not well; 2 with one line if it cannot start, or not poll `--once`."""
    found = parser().parse_args(arguments)
    writer = LineWriter(sys.stdout)
    try:
        at = Channel(found.channel, found.fleet, found.model, found.hardware or local_hardware().key)
        if found.status:
            return probe(found.cache_dir, at)
        if not found.store or not found.root_file or found.poll_s <= 0:
            raise SidecarError("sidecar: expected --store, --root-file and a time above 0 in --poll-s; see --help")
        settings = SidecarSettings(
            store=found.store,
            at=at,
            root_file=found.root_file,
            cache_dir=found.cache_dir,
            outbox_dir=found.outbox_dir or found.cache_dir / "outbox",
            poll_s=found.poll_s,
            tables=tuple(filter(None, found.tables.split(","))),
        )
        sidecar = opened(settings, os.environ, writer)
        writer.write("started", version=__version__, channel=str(at), poll_s=settings.poll_s)
        if found.once:
            sidecar.start()
            sidecar.poll_once()
            sidecar.stop()
            if sidecar.status.problem:
                raise SidecarError(sidecar.status.problem)
            return 0
        stopped = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        run(sidecar, settings.poll_s, stopped)
    except GristmillError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def probe(cache_dir: Path, at: Channel) -> int:
    """Prints the status as one line of JSON."""
    path = sidecar_status.status_path(cache_dir, at)
    status = sidecar_status.read(path)
    trouble = sidecar_status.trouble(status, path.stat().st_mtime if status else 0.0)
    LineWriter(sys.stdout).write("status", well=not trouble, trouble=trouble, **records.encode(status or {}))
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
