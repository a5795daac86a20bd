"""Looking at canaries: what is tried on which channel, what its hosts report, and what was remembered of them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from gristmill import cohort, limits, records, trust
from gristmill.errors import (
    MalformedRecordError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    PreconditionFailedError,
)
from gristmill.revocation import Revocations, not_revoked, remainder
from gristmill.status_report import Received, read_reports
from gristmill.store import ObjectStore, StoredObject
from gristmill.trust import Channel
from registry.canary import DEFAULT_POLICY, Assessment, WatchPolicy, look
from registry.entry import Entry
from registry.failures import LOOKED_BACK, kernels_of
from registry.garbage import store_clock_s
from registry.keys import Keyring
from registry.publication import read_manifest
from registry.repository import Orders, Repository
from registry.witness import Canary, Watch
from tasks.errors import WatchError
from tasks.settings import Settings

SHOWN_S = 3600.0
"""Where nothing is tried, reports so young are shown."""
_ATTEMPTS = 8
States = Callable[[], Iterator[tuple[str, frozenset[str]]]]
"""Newest first: the digest of each and all that it serves by digest."""


@dataclass(frozen=True)
class Looked:
    """What one look at one canary channel found."""

    channel: Channel
    entry: Entry | None
    """What canary serves; None if nothing was ever published there."""
    share_permille: int
    received: tuple[Received, ...]
    now_s: float
    """By the store's clock."""
    policy: WatchPolicy
    """What it was judged by."""
    watch: Watch | None
    """None if canary serves nothing that stable does not: nothing is tried."""
    assessment: Assessment | None


def policy_of(changes: Mapping[str, float]) -> WatchPolicy:
    """The default policy with some numbers changed.

    Raises:
        WatchError: a name that it does not have, or a number that it can't.
    """
    known = dataclasses.asdict(DEFAULT_POLICY)
    for name, value in changes.items():
        if name not in known:
            raise WatchError(f"watch policy: {name!r} is not known, expected one of {', '.join(known)}")
        least, whole = int(name == "min_hosts"), isinstance(known[name], int)
        if not (math.isfinite(value) and value >= least) or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise WatchError(f"watch policy: {name} is {value:g}, expected {kind} from {least}")
        known[name] = int(value) if whole else float(value)
    return WatchPolicy(**known)


def canary_channels(object_store: ObjectStore, keyring: Keyring, settings: Settings) -> tuple[Channel, ...]:
    """The canary channels of this fleet and model, on all hardware that something was published for."""
    repository = Repository(object_store, keyring)
    if not repository.exists():
        return ()
    wanted = (cohort.CANARY, settings.fleet, settings.model)
    ours = [one for one in repository.channels() if (one.name, one.fleet, one.model) == wanted]
    return tuple(sorted(ours, key=str))


def look_at(
    object_store: ObjectStore, keyring: Keyring, channel: Channel, policy: WatchPolicy, remember: bool
) -> Looked:
    """One look at the reports of a channel's hosts.

    Args:
        remember: whether the next look builds upon this one. It must before anything is done about it: a failure that
            is written down stays one, whatever dies in between.

    Raises:
        WatchError: others looked at the same moment, many times.
    """
    repository = Repository(object_store, keyring)
    orders = repository.orders(channel)
    entry, share = orders.canary, orders.share_permille
    now_s = store_clock_s(object_store)
    canary = _tried(object_store, channel, orders, now_s)
    if canary is None or entry is None:
        received = tuple(read_reports(object_store, channel, now_s - SHOWN_S))
        return Looked(channel, entry, share, received, now_s, policy, None, None)
    received = tuple(read_reports(object_store, channel, canary.promoted_s - policy.silent_s))

    states = _states(object_store, repository, channel, entry)
    watch, assessment = _looked(object_store, canary, states, received, now_s, policy, remember)
    return Looked(channel, entry, share, received, now_s, policy, watch, assessment)


def remembered(object_store: ObjectStore, keyring: Keyring, channel: Channel) -> Watch | None:
    """What the watch has found of what canary tries now, as far as it was written down: no report is looked at. None
    where nothing is tried."""
    repository = Repository(object_store, keyring)
    orders = repository.orders(channel)
    # the store's clock is not asked: that writes, and who approves may not
    canary = _tried(object_store, channel, orders, now_s=0.0)
    if canary is None:
        return None
    known, _ = _recall(object_store, watch_key(channel))
    return _taken_up(known, canary, _states(object_store, repository, channel, orders.canary))


def canary_of(
    channel: Channel,
    entry: Entry | None,
    tried: Mapping[str, str],
    stable: Mapping[str, str],
    share_permille: int,
    promoted_s: float,
    kernels: Callable[[str], frozenset[str]] = lambda manifest: frozenset(),
) -> Canary | None:
    """What is tried; None while canary serves nothing that stable does not serve: to lack tables tries nothing.

    Args:
        promoted_s: when the state was written, by the store's clock, as all that hosts report is.
        tried, stable: tables that hosts of either channel run: what is revoked is tried on nobody, and waited for by
            nobody. Hosts draw their cohort with what the index says all the same.
        kernels: the digests of a manifest's objects and candidates.
    """
    if entry is None or not cohort.tries(tried, stable):
        return None
    manifests = {name: digest for name, digest in tried.items() if stable.get(name) != digest}
    return Canary(
        channel=channel,
        state=entry.sha256,
        number=entry.index.number,
        promoted_s=promoted_s,
        changed=tuple(sorted(manifests)),
        salt=cohort.salt_of(entry.index),
        share_permille=share_permille,
        manifests=manifests,
        kernels={
            name: tuple(sorted(kernels(digest) - (kernels(stable[name]) if name in stable else frozenset())))
            for name, digest in manifests.items()
        },
    )


def watch_key(channel: Channel) -> str:
    """Where the store keeps what is remembered of a channel's canary."""
    return f"watch/{channel.fleet}/{channel.model}/{channel.hardware}.json"


def _tried(object_store: ObjectStore, channel: Channel, orders: Orders, now_s: float) -> Canary | None:
    """See `canary_of`."""
    entry = orders.canary
    tried, stable = (_run_by_hosts(object_store, one, orders.revoked) for one in (entry, orders.stable))
    promoted_s = _written_s(object_store, entry, now_s) if entry else now_s
    kernels = functools.partial(kernels_of, object_store)
    return canary_of(channel, entry, tried, stable, orders.share_permille, promoted_s, kernels)


def _states(object_store: ObjectStore, repository: Repository, channel: Channel, entry: Entry | None) -> States:
    """A state of canary and those before it, each with all that it serves by digest."""

    def states() -> Iterator[tuple[str, frozenset[str]]]:
        for state in islice(repository.history_from(entry, channel), LOOKED_BACK):
            manifests = state.index.tables.values()
            yield state.sha256, frozenset(manifests).union(*(kernels_of(object_store, one) for one in manifests))

    return states


def _run_by_hosts(object_store: ObjectStore, entry: Entry | None, revoked: Revocations) -> dict[str, str]:
    """The tables of a state that hosts run: those of which something is left that is not revoked."""
    tables = not_revoked(entry.index.tables, revoked) if entry else {}
    if not revoked.reasons:
        return tables
    return {name: digest for name, digest in tables.items() if _has_kernels(object_store, digest, revoked)}


def _has_kernels(object_store: ObjectStore, manifest_sha256: str, revoked: Revocations) -> bool:
    try:
        return bool(remainder(read_manifest(object_store, manifest_sha256).table, revoked).entries)
    except ObjectNotFoundError:
        return True  # the store has lost it; hosts have it in their caches


def _written_s(object_store: ObjectStore, entry: Entry, now_s: float) -> float:
    """When the store got a state. A promoter's clock may be off: by it a canary would be judged too early, or never."""
    index = entry.index
    channel = Channel(index.channel, index.fleet, index.model, index.hardware)
    found = object_store.scan(trust.target_key(channel.index_path, entry.sha256))
    return next((one.modified_s for one in found), now_s)


def _taken_up(known: Watch | None, canary: Canary, states: States) -> Watch:
    """The watch of a canary, upon what was remembered. That of a state that was not looked at yet inherits the failures
    of what canary has served ever since the state that was, in whichever manifest: whoever rolled it back and brought
    it again knew.

    Args:
        states: of the channel, newest first.
    """
    if known is None:
        return Watch(canary)
    if known.canary.state == canary.state:
        return replace(known, canary=canary)
    tried = frozenset[str]().union(*map(canary.named, canary.manifests))
    left = {digest: why for digest, why in known.condemned.items() if digest in tried}
    for state, served in states() if left else ():
        if state == known.canary.state:
            break
        left = {digest: why for digest, why in left.items() if digest in served}
    return Watch(canary, inherited=left)


def _looked(
    object_store: ObjectStore,
    canary: Canary,
    states: States,
    received: tuple[Received, ...],
    now_s: float,
    policy: WatchPolicy,
    remember: bool,
) -> tuple[Watch, Assessment]:
    key = watch_key(canary.channel)
    for _ in range(_ATTEMPTS):
        known, etag = _recall(object_store, key)
        watch, assessment = look(_taken_up(known, canary, states), received, now_s, policy)
        if not remember or watch == known:
            return watch, assessment
        content = limits.checked(records.canonical_json(watch), limits.MAX_WATCH_BYTES, f"{object_store.url}: {key}")
        try:
            if etag is None:
                object_store.put_new(key, content)
            else:
                object_store.replace_if(key, content, etag)
        except (ObjectExistsError, PreconditionFailedError):
            continue
        return watch, assessment
    raise WatchError(f"{object_store.url}: {key}: others wrote it {_ATTEMPTS} times meanwhile; try again later")


def _recall(object_store: ObjectStore, key: str) -> tuple[Watch | None, str | None]:
    """What was remembered, and its tag. A damaged memory is none: the watch begins anew."""
    try:
        found = object_store.get(key, max_bytes=limits.MAX_WATCH_BYTES)
    except ObjectNotFoundError:
        return None, None
    except ObjectTooLargeError:
        raise WatchError(f"{object_store.url}: {key} is too long to be read; delete it to begin anew") from None
    assert isinstance(found, StoredObject), "no etag was given"
    try:
        return records.parse(Watch, found.content, key), found.etag
    except MalformedRecordError:
        return None, found.etag
