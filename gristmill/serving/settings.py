"""What a serving process is started with, and the refusal of what cannot work, before anything heavy is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import ServingError
from gristmill.kill_switch import read_kill_switch
from gristmill.membership import Membership, checked_worker
from gristmill.sampler import DEFAULT_PERIOD
from gristmill.serving.model import ModelShape
from gristmill.store import open_store

if TYPE_CHECKING:
    from gristmill.store import ObjectStore


@dataclass(frozen=True)
class EngineSettings:
    """Everything a serving process is started with.

    Without a store it spools nothing; if it has a root and a cache folder all the same, it follows a sidecar
    (`gristmill.sidecar`) that fills the folder, and leaves its reports there.
    """

    model: str = "reference"
    """Name of the model in fleets, channels and spools."""
    shape: ModelShape = field(default_factory=ModelShape)
    dtype: str = "float32"
    seed: int = 0
    threads: int = 0
    """Of torch within an operator; 0 leaves its default."""
    store: str = ""
    fleet: str = "demo"
    channel: str = "stable"
    root_file: str = ""
    """Trusted root metadata. Without it the process follows no channel."""
    cache_dir: str = ""
    poll_s: float = 1.0
    sampling: bool = True
    sample_period: int = DEFAULT_PERIOD
    spool_s: float = 10.0
    shadow_every: int = 1024
    worker: str = ""
    """Which process of this host it is, where several share a cache folder."""

    def check(self, environ: Mapping[str, str]) -> None:
        """Looks at everything that can be wrong without a model.

        Raises:
            GristmillError: the store's address, the trusted root, the cache folder or the kill switch.
        """
        read_kill_switch(environ)
        if self.root_file:
            self._required_cache_dir()
            self.membership().check(environ)
        checked_worker(self.worker)
        if not self.store:
            return
        if self.sampling and importlib.util.find_spec("pyarrow") is None:
            raise ServingError(
                "serving: pyarrow is not installed, so samples cannot be written; install gristmill[capture] or start "
                "with --no-sampling"
            )
        self.object_store(environ)
        self.waiting_dir()

    def object_store(self, environ: Mapping[str, str]) -> ObjectStore:
        """The store, with credentials from the environment."""
        return open_store(self.store, environ)

    def waiting_dir(self) -> Path:
        """Where samples wait while the store is away."""
        return self._required_cache_dir() / "spool"

    def membership(self) -> Membership:
        """For a process with a root."""
        return Membership(
            self.fleet,
            self.model,
            self.root_file,
            self.cache_dir,
            self.channel,
            self.store,
            self.poll_s,
            self.sample_period,
            self.shadow_every,
        )

    def _required_cache_dir(self) -> Path:
        if not self.cache_dir:
            raise ServingError("serving: a store or a root is given, but no cache folder; name one with --cache-dir")
        return Path(self.cache_dir)
