"""From spool to profile: read what hosts sampled, fold it, keep it, and say whether it has drifted.

Profiles are immutable objects named by the end of their window, so that the newest is the last in order. That a search
was run for a profile is an object as well: the next capture compares with the newest of those.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from gristmill import records
from gristmill.store import ObjectStore, read
from kernels.profile import Drift, TrafficProfile, drift
from kernels.spool_fold import fold
from tasks.errors import NoProfileError
from tasks.settings import Settings

MAX_SPOOL_FILE_BYTES = 64 << 20
NS_PER_HOUR = 3600 * 10**9
PROFILES = "profiles"
COMPILED = "compiled"


def capture_profile(store: ObjectStore, settings: Settings, window_h: float) -> TrafficProfile:
    """Folds the last hours of the spool into a profile.

    Raises:
        EmptyProfileError: if no host has sampled anything in the window.
    """
    since_ns = time.time_ns() - round(window_h * NS_PER_HOUR)
    return fold(_spool_files(store, settings, since_ns))


def keep_profile(store: ObjectStore, settings: Settings, profile: TrafficProfile) -> str:
    """Writes the profile to the store and returns its digest. Writing it again changes nothing."""
    return _keep(store, _folder(PROFILES, settings), profile)


def latest_profile(store: ObjectStore, settings: Settings) -> TrafficProfile:
    """The newest profile of this fleet, model and hardware.

    Raises:
        NoProfileError: if none was captured yet.
    """
    profile = _latest(store, _folder(PROFILES, settings))
    if profile is None:
        raise NoProfileError(
            f"no traffic profile for fleet {settings.fleet!r}, model {settings.model!r} on {settings.hardware} in "
            f"{store.url}: run ./mill capture first, once ./mill serve or a fleet of yours (MILL_FLEET, MILL_MODEL) "
            "was sampled; ./mill demo does all of it"
        )
    return profile


def mark_compiled(store: ObjectStore, settings: Settings, profile: TrafficProfile) -> None:
    """Remembers that a search was run for this profile: drift is measured against it from now on."""
    _keep(store, _folder(COMPILED, settings), profile)


def drift_since_compiled(store: ObjectStore, settings: Settings, profile: TrafficProfile) -> Drift | None:
    """How far traffic has moved since the last search; None if there was no search yet."""
    compiled = _latest(store, _folder(COMPILED, settings))
    return None if compiled is None else drift(compiled, profile)


def _spool_files(store: ObjectStore, settings: Settings, since_ns: int) -> Iterator[tuple[str, bytes]]:
    for key in store.list(_folder("spool", settings)):
        start_ns = key.rsplit("/", 1)[-1].partition("-")[0]
        if key.endswith(".parquet") and start_ns.isdecimal() and int(start_ns) >= since_ns:
            yield key, read(store, key, MAX_SPOOL_FILE_BYTES)


def _keep(store: ObjectStore, folder: str, profile: TrafficProfile) -> str:
    digest = records.digest(profile)
    stamp = profile.window_end_utc.translate(str.maketrans("", "", ":-"))
    store.put_new(f"{folder}{stamp}-{digest[:16]}.json", records.canonical_json(profile))
    return digest


def _latest(store: ObjectStore, folder: str) -> TrafficProfile | None:
    newest = max(store.list(folder), default=None)
    return None if newest is None else records.parse(TrafficProfile, read(store, newest), newest)


def _folder(kind: str, settings: Settings) -> str:
    return f"{kind}/{settings.fleet}/{settings.model}/{settings.hardware}/"
