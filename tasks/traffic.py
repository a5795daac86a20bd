"""From spool to profile: read what hosts sampled, fold it, keep it, and say whether it has drifted.

Profiles are immutable objects named by the end of their window, so that the newest is the last in order. That a search
was run for a profile is an object as well: the next capture compares with the newest of those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill import records
from gristmill.store import ObjectStore, read
from kernels.profile import TrafficProfile, parse
from kernels.spool_fold import tally
from kernels.tally import Tally, total
from tasks import object_store
from tasks.errors import NoProfileError
from tasks.settings import Settings

if TYPE_CHECKING:
    from kernels.drift import Drift, Season

MAX_SPOOL_FILE_BYTES = 64 << 20
NS_PER_HOUR = 3600 * 10**9
AHEAD_NS = NS_PER_HOUR
"""By which a host's clock may be ahead of ours. What is dated later is of a clock that is wrong, and would be in every
window until then.
"""
PROFILES = "profiles"
COMPILED = "compiled"
KEY_DIGITS = 16
"""Of a profile's digest, in the name of its object."""
SEASONS = (timedelta(days=1), timedelta(days=7))
SEASON_TOLERANCE = timedelta(minutes=30)
PART_FILES = 64
"""Spool objects that are folded as one where folding is spread over a cluster: seconds of work."""
Part = tuple[str, ...]
"""Keys of spool objects."""
Folded = Callable[[Settings, Sequence[Part]], Iterable[Tally]]
"""Lets `fold_part` run for each part, wherever that may be; their order does not matter."""


def capture_profile(
    store: ObjectStore, settings: Settings, window_h: float, elsewhere: Folded | None = None
) -> TrafficProfile:
    """Folds the last hours of the spool into a profile. The profile is the same wherever its parts were folded.

    Raises:
        EmptyProfileError: if no host has sampled anything in the window.
    """
    since_ns = time.time_ns() - round(window_h * NS_PER_HOUR)
    keys = _spool_keys(store, settings, since_ns)
    if elsewhere is None:
        return _tallied(store, keys).profile()
    parts = [keys[start : start + PART_FILES] for start in range(0, len(keys), PART_FILES)]
    return total(("from another worker", one) for one in elsewhere(settings, parts)).profile()


def fold_part(settings: Settings, part: Part) -> Tally:
    """Folds these objects, in whatever process of whatever machine: it opens the store itself, and writes nothing.

    Raises:
        SpoolObjectError: naming an object that is malformed.
    """
    with object_store.opened(settings) as opened:
        return _tallied(opened.store, part)


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
    """How far traffic has moved since the last search; None if there was no search yet. What this hour's traffic was a
    day or a week earlier already, before that search, is usual.
    """
    compiled = _latest(store, _folder(COMPILED, settings))
    from kernels.drift import drift  # numpy: who only reads profiles does without

    return None if compiled is None else drift(compiled, profile, seasons(store, settings, compiled, profile))


def seasons(
    store: ObjectStore, settings: Settings, compiled: TrafficProfile, profile: TrafficProfile
) -> tuple[Season, ...]:
    """The windows at the same hour of the last day, and the last week, that ended when nothing was compiled for yet but
    `compiled`. Later ones excuse nothing: what moved since then would excuse itself a day later.
    """
    now, mark = _moment(profile.window_end_utc), _moment(compiled.window_end_utc)
    ends = {key: _moment(key.rsplit("/", 1)[-1].rpartition("-")[0]) for key in store.list(_folder(PROFILES, settings))}
    from kernels.drift import Season

    found = []
    for period in SEASONS:
        target = now - period * max(1, math.ceil((now - mark) / period))
        near = [key for key, end in ends.items() if abs(end - target) <= SEASON_TOLERANCE]
        if not near:
            continue
        key = min(near, key=lambda key: (abs(ends[key] - target), key))
        known = parse(read(store, key), key)
        if _length(known) >= 0.75 * _length(profile) and known != compiled:
            found.append(Season(f"on {ends[key]:%Y-%m-%d %H:%M}", known))
    return tuple(found)


def find_profile(store: ObjectStore, settings: Settings, named: str) -> TrafficProfile:
    """A profile from a file, or one that was kept, by the first digits of its digest.

    Raises:
        NoProfileError: there is none of that name, or several.
    """
    if _is_file(named):
        try:
            return parse(Path(named).read_bytes(), named)
        except OSError as error:
            raise NoProfileError(f"traffic profile {named}: {error.strerror}; name a file that can be read") from None
    digits = named.lower()[:KEY_DIGITS]
    keys = [key for key in store.list(_folder(PROFILES, settings)) if _digits_of(key).startswith(digits or "none")]
    if len(keys) != 1:
        found = f"{len(keys)} begin so of those" if keys else "no file, and no digest of one"
        raise NoProfileError(
            f"traffic profile {named[:100]!r}: {found} that was kept for fleet {settings.fleet!r}, model "
            f"{settings.model!r}; name a file of ./mill import --out, or digits as ./mill capture shows them"
        )
    return parse(read(store, keys[0]), keys[0])


def _digits_of(key: str) -> str:
    return key.removesuffix(".json").rpartition("-")[2]


def _is_file(named: str) -> bool:
    try:
        return Path(named).is_file()
    except OSError:  # a name that no file can have
        return False


def _moment(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)


def _length(profile: TrafficProfile) -> float:
    return (_moment(profile.window_end_utc) - _moment(profile.window_start_utc)).total_seconds()


def _spool_keys(store: ObjectStore, settings: Settings, since_ns: int) -> Part:
    return tuple(key for key in store.list(_folder("spool", settings)) if sampled_within(key, since_ns))


def sampled_within(key: str, since_ns: int) -> bool:
    """Whether it is a spool object whose window began since then, and not after now."""
    start_ns = key.rsplit("/", 1)[-1].partition("-")[0]
    if not (key.endswith(".parquet") and start_ns.isdecimal() and len(start_ns) < 20):
        return False
    return since_ns <= int(start_ns) <= time.time_ns() + AHEAD_NS


def _tallied(store: ObjectStore, keys: Iterable[str]) -> Tally:
    return total((key, tally(key, read(store, key, MAX_SPOOL_FILE_BYTES))) for key in keys)


def _keep(store: ObjectStore, folder: str, profile: TrafficProfile) -> str:
    digest = records.digest(profile)
    stamp = profile.window_end_utc.translate(str.maketrans("", "", ":-"))
    store.put_new(f"{folder}{stamp}-{digest[:KEY_DIGITS]}.json", records.canonical_json(profile))
    return digest


def _latest(store: ObjectStore, folder: str) -> TrafficProfile | None:
    newest = max(store.list(folder), default=None)
    return None if newest is None else parse(read(store, newest), newest)


def _folder(kind: str, settings: Settings) -> str:
    return f"{kind}/{settings.fleet}/{settings.model}/{settings.hardware}/"
