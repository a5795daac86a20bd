"""The follower: what readers of a channel have in common, whether they fill their cache or another process does.

Loads TUF's libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gristmill.assembly import Assembler
from gristmill.cache import Cache, GenerationRecord
from gristmill.cohort import AUTO
from gristmill.errors import StaleRegistryError
from gristmill.proof import Proof, Prover
from gristmill.trust import CHANNELS, Channel

START_S = 5.0
"""How long the first poll may take where the cache holds a generation; then that one serves, until the next poll."""
NEVER = datetime.max.replace(tzinfo=UTC)


class Follower:
    """Follows one channel, and takes what it serves out of a cache. One thread at a time may use it."""

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
        """Nothing is read yet.

        Args:
            root_bytes: the signed root metadata that the operator installed with the host: what all trust starts from.
            channel: `canary`, `stable`, or `auto`, with which the host's cohort decides; see `gristmill.cohort`.
            tables: names of the kernel tables (`rms_norm.float32`) that this host can use, asked at every poll. The
                others' manifests and objects are neither fetched nor looked at. None: all.
        """
        self.channel = Channel(channel, fleet, model, hardware)
        """What is followed now. With `auto` it is known after the first poll, or from the cache."""
        self.cache = Cache(cache_dir)
        self._setting = self.channel
        self._root = root_bytes
        self._tables = tables
        self._assembler = Assembler(self.cache, self.channel)
        self._expires = NEVER

    @property
    def _prover(self) -> Prover:
        return Prover(self.cache, self.channel, self._root)

    def _wanted(self) -> frozenset[str] | None:
        return None if self._tables is None else frozenset(self._tables())

    def _turn_to(self, channel: Channel) -> bool:
        """Follows this channel from now on; whether it is another one."""
        if channel == self.channel:
            return False
        self.channel = channel
        self._assembler = Assembler(self.cache, channel)
        return True

    def _proven(self, record: GenerationRecord) -> Proof:
        """A record of the cache, verified but for expiry, and no older than the high-water mark."""
        proof = self._prover.prove_by_newest_policy(record)
        self.cache.check_high_water(proof.seen)
        return proof

    def _can_start_offline(self) -> bool:
        """Whether the cache holds a generation that this host may follow, sound or not."""
        names = CHANNELS if self._setting.name == AUTO else (self._setting.name,)
        return any(self.cache.has_generation(replace(self._setting, name=name)) for name in names)

    def _check_fresh(self, where: str, advice: str) -> None:
        if datetime.now(UTC) >= self._expires:
            raise StaleRegistryError(
                f"{where}: what is current was signed until {self._expires:%Y-%m-%d %H:%M} UTC and not renewed; "
                f"{advice}, and check this host's clock"
            )
