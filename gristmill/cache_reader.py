"""The cache reader: an engine follows its channel through a cache that a sidecar fills, without network or keys.

It believes the sidecar no more than a store: everything is verified again, from the root that this engine was given.
It only reads, and takes no lock, so the folder may be mounted read-only and a sidecar that hangs holds nobody up: the
files appear whole, and what they name is named by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from gristmill import durable_file, sidecar_status
from gristmill.assembly import Assembler
from gristmill.cache import Cache
from gristmill.cohort import AUTO
from gristmill.errors import RollbackError, SidecarError, StaleRegistryError
from gristmill.generation import Generation, empty
from gristmill.proof import Prover
from gristmill.sidecar_status import SidecarStatus
from gristmill.trust import Channel

_NEVER = datetime.max.replace(tzinfo=UTC)


class CacheReader:
    """Follows one channel. One thread at a time may use it; any number of processes may read one folder."""

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
        """Nothing is read yet; arguments as those of `pull.Puller`."""
        self.channel = Channel(channel, fleet, model, hardware)
        """What is followed now; with `auto`, what the sidecar says of this host's cohort."""
        self.cache = Cache(cache_dir)
        self._setting = self.channel
        self._root = root_bytes
        self._assembler = Assembler(self.cache, self.channel)
        self._tables = tables
        self._status_path = str(sidecar_status.status_path(cache_dir, self.channel))
        self._status_stamp = durable_file.MISSING
        self._status: SidecarStatus | None = None
        self._watched = [str(path) for path in self.cache.watched(self.channel)]
        self._mark: object = None
        self._generation: Generation | None = None
        self._seen: dict[str, int] = {}
        """As the cache's high-water mark, but out of reach for whoever writes to the folder."""
        self._expires = _NEVER

    def poll(self) -> Generation | None:
        """A generation that differs from the one handed out last, or None. Without news it only looks at when a few
        files were written.

        Raises:
            TrustError, RollbackError, CacheError: as `Puller.last_good`; nothing was taken.
            StaleRegistryError: what is current has expired.
            SidecarError: the sidecar is gone, or says that it cannot poll.
        """
        names = self._wanted()
        mark = (names, *map(durable_file.stamp, self._watched))
        if mark != self._mark:
            generation = self._read(names)
            self._expires = self._prover.expires() if generation is not None and generation.number else _NEVER
            self._mark = mark
            if generation is not None and generation != self._generation:
                self._generation = generation
                return generation
        if datetime.now(UTC) >= self._expires:
            raise StaleRegistryError(
                f"{self.cache.folder}: what is current was signed until {self._expires:%Y-%m-%d %H:%M} UTC and not "
                "renewed; look after the sidecar and the registry, and check this host's clock"
            )
        self._check_sidecar()
        return None

    def last_good(self) -> Generation | None:
        """The generation in the cache, whatever the sidecar does; None if there is none. Errors as `poll`."""
        self._generation = self._read(self._wanted())
        return self._generation

    def _read(self, names: frozenset[str] | None) -> Generation | None:
        left = self._setting.name == AUTO and self._turn_to(self.cache.followed(self._setting))
        record = self.cache.load_generation(self.channel)
        if record is None:
            return empty(self.channel.name, self.channel.hardware) if left else None
        proof = self._prover.prove_by_newest_policy(record)
        self.cache.check_high_water(proof.seen)
        self._check_seen(proof.seen)
        generation = self._assembler.assemble(proof.index, proof.policy, proof.revoked, names, None)
        self._seen = {**(self._seen if proof.seen["root"] == self._seen.get("root") else {}), **proof.seen}
        return generation

    def _turn_to(self, channel: Channel) -> bool:
        """Whether it hereby leaves a channel that it has followed."""
        if channel == self.channel:
            return False
        self.channel = channel
        self._assembler = Assembler(self.cache, channel)
        return self._generation is not None

    @property
    def _prover(self) -> Prover:
        return Prover(self.cache, self.channel, self._root)

    def _wanted(self) -> frozenset[str] | None:
        return None if self._tables is None else frozenset(self._tables())

    def _check_seen(self, seen: dict[str, int]) -> None:
        """The root never falls, and while it stays neither does the index."""
        if seen["root"] < self._seen.get("root", 0) or (
            seen["root"] == self._seen.get("root")
            and any(version < self._seen.get(name, 0) for name, version in seen.items())
        ):
            raise RollbackError(
                f"{self.cache.folder}: holds an older state than this process has read from it; somebody replays it"
            )

    def _check_sidecar(self) -> None:
        found = durable_file.stamp(self._status_path)
        if found != self._status_stamp or self._status is None:
            self._status_stamp, self._status = found, sidecar_status.read(Path(self._status_path))
        trouble = sidecar_status.trouble(self._status, found[0] / 1e9)
        if trouble:
            raise SidecarError(f"{self.cache.folder}, {self.channel}: {trouble}")
