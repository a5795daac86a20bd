"""The object store that the settings name, or the embedded one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gristmill.store import ObjectStore, open_store
from tasks.settings import Settings


@dataclass(frozen=True)
class OpenStore:
    """A store, and what another process needs to open it too."""

    store: ObjectStore
    url: str
    environ: Mapping[str, str] = field(repr=False)
    """Credentials; they travel in environments only."""


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[OpenStore]:
    """The store of these settings until the block ends. The embedded one is started unless it already runs."""
    if settings.store_url:
        yield OpenStore(open_store(settings.store_url, os.environ), settings.store_url, {})
        return
    from registry.embedded_store import running_or_started

    with running_or_started(settings.home) as embedded:
        yield OpenStore(embedded.open(), embedded.url, embedded.environ)
