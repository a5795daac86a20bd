"""The cache reader: an engine follows its channel through a cache that a sidecar fills, without network or keys.

It believes the sidecar no more than a store: everything is verified again, from the root that this engine was given.
It only reads, and takes no lock, so the folder may be mounted read-only and a sidecar that hangs holds nobody up: the
files appear whole, and what they name is named by digest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from gristmill import durable_file, sidecar_status
from gristmill.cache import GenerationRecord
from gristmill.cohort import AUTO
from gristmill.errors import RollbackError, SidecarError
from gristmill.follower import NEVER, START_S, Follower
from gristmill.generation import Generation, empty
from gristmill.proof import Proof
from gristmill.sidecar_status import SidecarStatus

ATTEMPTS = 10
PAUSE_S = 0.02
"""Before a record that looks old is read again: writing a mark and a record takes some syncs of a disk."""


class CacheReader(Follower):
    """Any number of processes may read one folder. With `auto` the sidecar says what this host's cohort follows."""

    def __init__(
        self,
        root_bytes: bytes,
        fleet: str,
        model: str,
        hardware: str,
        channel: str,
        cache_dir: Path,
        tables: Callable[[], Collection[str]] | None = None,
    ) -> None:
        super().__init__(root_bytes, fleet, model, hardware, channel, cache_dir, tables)
        self.start_s = START_S
        self._status_path = str(sidecar_status.status_path(cache_dir, self.channel))
        self._status_stamp = durable_file.MISSING
        self._status: SidecarStatus | None = None
        self._watched = [str(path) for path in self.cache.watched(self.channel)]
        self._mark: object = None
        self._waited = False
        self._generation: Generation | None = None
        self._seen: dict[str, int] = {}
        """As the cache's high-water mark, but out of reach for whoever writes to the folder."""

    def poll(self) -> Generation | None:
        """A generation that differs from the one handed out last, or None. Without news it only looks at when a few
        files were written.

        Raises:
            TrustError, RollbackError, CacheError: as `Puller.last_good`; nothing was taken.
            StaleRegistryError: what is current has expired.
            SidecarError: the sidecar is gone, or says that it cannot poll.
        """
        if self._mark is None and not self._waited:
            self._await_sidecar()
        names = self._wanted()
        mark = (names, *map(durable_file.stamp, self._watched))
        if mark != self._mark:
            generation = self._read(names)
            self._expires = self._prover.expires() if generation is not None and generation.number else NEVER
            self._mark = mark
            if generation is not None and generation != self._generation:
                self._generation = generation
                return generation
        self._check_fresh(str(self.cache.folder), "look after the sidecar and the registry")
        self._check_sidecar()
        return None

    def last_good(self) -> Generation | None:
        """The generation in the cache, whatever the sidecar does; None if there is none. Errors as `poll`."""
        self._generation = self._read(self._wanted())
        return self._generation

    def _read(self, names: frozenset[str] | None) -> Generation | None:
        turned = self._setting.name == AUTO and self._turn_to(self.cache.followed(self._setting))
        record = self.cache.load_generation(self.channel)
        if record is None:
            left = turned and self._generation is not None
            return empty(self.channel.name, self.channel.hardware) if left else None
        proof = self._proven_in_time(record)
        self._check_seen(proof.seen)
        generation = self._assembler.assemble(proof, names, None)
        self._seen = {**(self._seen if proof.seen["root"] == self._seen.get("root") else {}), **proof.seen}
        return generation

    def _proven_in_time(self, record: GenerationRecord) -> Proof:
        """As `_proven`. Who fills the cache raises the mark before it keeps the record: between the two, and where it
        was read before both, it looks like an old one.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._proven(record)
            except RollbackError:
                time.sleep(PAUSE_S)
                record = self.cache.load_generation(self.channel) or record
        return self._proven(record)

    def _check_seen(self, seen: dict[str, int]) -> None:
        """The root never falls, and while it stays neither does the index."""
        if seen["root"] < self._seen.get("root", 0) or (
            seen["root"] == self._seen.get("root")
            and any(version < self._seen.get(name, 0) for name, version in seen.items())
        ):
            raise RollbackError(
                f"{self.cache.folder}: holds an older state than this process has read from it; somebody replays it"
            )

    def _await_sidecar(self) -> None:
        """Gives a sidecar that starts along with this engine the time to see what was taken back meanwhile."""
        self._waited = True
        ends_at_s = time.monotonic() + self.start_s
        while self._can_start_offline() and time.monotonic() < ends_at_s:
            touched_s = durable_file.stamp(self._status_path)[0] / 1e9
            if not sidecar_status.is_starting(sidecar_status.read(Path(self._status_path)), touched_s):
                return
            time.sleep(PAUSE_S)

    def _check_sidecar(self) -> None:
        found = durable_file.stamp(self._status_path)
        if found != self._status_stamp or self._status is None:
            self._status_stamp, self._status = found, sidecar_status.read(Path(self._status_path))
        trouble = sidecar_status.trouble(self._status, found[0] / 1e9)
        if trouble:
            raise SidecarError(f"{self.cache.folder}, {self.channel}: {trouble}")
