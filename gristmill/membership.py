"""Membership: which fleet a host's processes belong to, handed down to those that they spawn.

An engine that serves with several processes has to patch its model in each, or serves without kernels and nobody
notices. Whoever starts them hands its membership down through the environment, which spawned processes inherit along
with the store's credentials; each of them joins with one line (`gristmill.member.join`). Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill import records
from gristmill.cohort import FOLLOWING
from gristmill.directory_store import DirectoryStore
from gristmill.errors import MembershipError
from gristmill.sampler import DEFAULT_PERIOD
from gristmill.store import ObjectStore, checked_key, open_store

if TYPE_CHECKING:
    from gristmill.cache_reader import CacheReader
    from gristmill.pull import Puller

VARIABLE = "GRISTMILL_MEMBERSHIP"


@dataclass(frozen=True)
class Membership:
    """All that a process needs to follow its channel and to report. It holds no secret."""

    fleet: str
    model: str
    """The model's name in channels."""
    root_file: str
    """Trusted root metadata, which the key ceremony made."""
    cache_dir: str
    """The processes of one host share it."""
    channel: str = "stable"
    """`canary`, `stable` or `auto`."""
    store: str = ""
    """Object store URL. Without one a sidecar fills the cache, and takes the reports."""
    poll_s: float = 15.0
    sample_period: int = DEFAULT_PERIOD
    """One call in so many is timed."""
    shadow_every: int = 1024
    spool_s: float = 60.0
    """Seconds between writes of samples, by adapters that spool by themselves; 0: none are written."""

    def check(self, environ: Mapping[str, str]) -> None:
        """Looks at everything that can be wrong without a model.

        Raises:
            GristmillError: the channel, the times, the trusted root, or the store's address.
        """
        if (
            self.channel not in FOLLOWING
            or self.poll_s <= 0
            or self.spool_s < 0
            or self.sample_period < 1
            or self.shadow_every < 0
        ):
            raise MembershipError(
                f"membership: found channel {self.channel!r}, poll_s {self.poll_s}, spool_s {self.spool_s}, "
                f"sample_period {self.sample_period} and shadow_every {self.shadow_every}; expected one of "
                f"{', '.join(FOLLOWING)}, and a time and a period above 0"
            )
        if not self.cache_dir:
            raise MembershipError("membership: no cache folder is named; give one that this host's processes share")
        self.trusted_root()
        self.report_store(environ)

    def trusted_root(self) -> bytes:
        """The signed root that all trust starts from."""
        try:
            return Path(self.root_file).read_bytes()
        except OSError as error:
            raise MembershipError(
                f"trusted root {self.root_file}: cannot be read ({error.strerror}); give the file that the registry's "
                "key ceremony made"
            ) from None

    def follower(
        self, hardware: str, tables: Callable[[], Collection[str]], environ: Mapping[str, str]
    ) -> CacheReader | Puller:
        """Of the channel for that hardware: fills the cache from the store, or reads what a sidecar puts there. Loads
        TUF's libraries.

        Args:
            tables: as `Follower` takes them.

        Raises:
            GristmillError: the trusted root, or the store's address.
        """
        from gristmill.cache_reader import CacheReader
        from gristmill.pull import Puller

        folder = Path(self.cache_dir)
        at = (self.trusted_root(), self.fleet, self.model, hardware, self.channel, folder, tables)
        return Puller(self.report_store(environ), *at) if self.store else CacheReader(*at)

    def report_store(self, environ: Mapping[str, str]) -> ObjectStore:
        """Where status reports go: to the store, or where a sidecar fetches them."""
        return open_store(self.store, environ) if self.store else DirectoryStore(Path(self.cache_dir) / "outbox")


def hand_down(membership: Membership, environ: MutableMapping[str, str]) -> None:
    """Lets processes that are started with this environment from now on join.

    Raises:
        GristmillError: as `Membership.check`; nothing is handed down.
    """
    membership.check(environ)
    environ[VARIABLE] = records.canonical_json(membership).decode()


def inherited(environ: Mapping[str, str]) -> Membership:
    """What was handed down to this process.

    Raises:
        MembershipError: nothing was. MalformedRecordError: it is not of this release's form.
    """
    if not environ.get(VARIABLE):
        raise MembershipError(
            f"{VARIABLE} is not set: this process was handed no membership; call gristmill.membership.hand_down in the "
            "process that starts it, before it does"
        )
    return records.parse(Membership, environ[VARIABLE], VARIABLE)


def checked_worker(name: str) -> str:
    """The name if it can be part of a report's.

    Raises:
        GristmillError: it holds a slash, or what no key may.
    """
    if name and "/" in checked_key(name):
        raise MembershipError(f"worker {name!r}: holds a slash; use one word")
    return name
