"""What a fleet runs that nothing was compiled for: another model, another device, another version of the engine.

Hosts sample into a folder per model and hardware, and each profile says which versions they ran; what was compiled for
is an object as well (see `tasks.traffic`). So a change is told from the store alone, by whoever looks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gristmill.hardware import kind_of_key
from gristmill.store import ObjectStore, read
from kernels.devices.device_profile import profile_of
from kernels.profile import TrafficProfile, parse
from tasks import traffic
from tasks.settings import Settings

OURS = "gristmill"
"""Its own version changes nothing about the times that it samples."""

Place = tuple[str, str]
"""Model and hardware."""


class Kind(StrEnum):
    """What changed."""

    MODEL = "model"
    ENGINE = "engine"
    DEVICE = "device"


@dataclass(frozen=True)
class Change:
    """One reason to compile."""

    kind: Kind
    model: str
    hardware: str
    told: str
    """In words."""


def fleet_changes(store: ObjectStore, settings: Settings, window_h: float) -> tuple[Change, ...]:
    """What this fleet has run in the last hours, on all models and hardware, that nothing was compiled for."""
    since_ns = time.time_ns() - round(window_h * traffic.NS_PER_HOUR)
    served = set(_sampled(store, settings, since_ns))
    compiled = {_place(key) for key in store.list(f"{traffic.COMPILED}/{settings.fleet}/")}
    changes = list(places_changed(served, compiled))
    for model, hardware in sorted(served & compiled):
        newest = newest_profile(store, settings, model, hardware)
        mark = newest_profile(store, settings, model, hardware, traffic.COMPILED)
        told = engine_change(mark, newest) if mark is not None and newest is not None else ""
        if told:
            changes.append(Change(Kind.ENGINE, model, hardware, told))
    return tuple(changes)


def places_changed(served: Iterable[Place], compiled: Iterable[Place]) -> Iterator[Change]:
    """Models and devices that are served and were never compiled for. A new model on a new device is a new model."""
    known = set(compiled)
    models = {model for model, _ in known}
    for model, hardware in sorted(set(served) - known):
        if model in models:
            yield Change(
                Kind.DEVICE, model, hardware, f"{model} is served on {hardware}, which is new{_lack(hardware)}"
            )
        else:
            yield Change(Kind.MODEL, model, hardware, f"{model} is served, and nothing was compiled for it yet")


def _lack(hardware: str) -> str:
    """What nobody knows of a GPU yet; empty for one that has a hardware profile, and for CPUs, which are measured."""
    if kind_of_key(hardware) == "cpu" or profile_of(hardware) is not None:
        return ""
    return "; no file of kernels/devices says what it can do"


def engine_change(compiled: TrafficProfile, newest: TrafficProfile) -> str:
    """Which version of a package hosts run now that they did not when it was compiled for; empty if there is none.

    A version that is gone is no change of its own: in a fleet that is being upgraded the first host with the new one
    was.
    """
    before, after = engine_versions(compiled.versions), engine_versions(newest.versions)
    new = [(package, after[package] - before.get(package, set())) for package in sorted(after)]
    return "; ".join(
        f"{package} {', '.join(sorted(versions))} is new, compiled for was {_listed(before.get(package, set()))}"
        for package, versions in new
        if versions
    )


def engine_versions(versions: Mapping[str, str]) -> dict[str, set[str]]:
    """Versions by package as a profile has them, each by itself, without our own."""
    return {package: set(text.split(", ")) for package, text in versions.items() if package != OURS and text}


def _listed(versions: set[str]) -> str:
    return ", ".join(sorted(versions)) or "none"


def _sampled(store: ObjectStore, settings: Settings, since_ns: int) -> Iterator[Place]:
    for key in store.list(f"spool/{settings.fleet}/"):
        if traffic.sampled_within(key, since_ns):
            yield _place(key)


def _place(key: str) -> Place:
    """Of `KIND/FLEET/MODEL/HARDWARE/...`."""
    _, _, model, hardware, *_ = key.split("/")
    return model, hardware


def newest_profile(
    store: ObjectStore, settings: Settings, model: str, hardware: str, kind: str = traffic.PROFILES
) -> TrafficProfile | None:
    """Of what was captured for a model and hardware of the fleet, or, as `kind` says, compiled for."""
    key = max(store.list(f"{kind}/{settings.fleet}/{model}/{hardware}/"), default=None)
    return None if key is None else parse(read(store, key), key)


def reason_to_compile(store: ObjectStore, settings: Settings, profile: TrafficProfile) -> str:
    """Why what was last compiled for is not what this profile says the fleet runs; empty if it is."""
    drift = traffic.drift_since_compiled(store, settings, profile)
    if drift is None:
        return "nothing was compiled for this fleet yet"
    if drift.exceeds:
        return f"traffic has moved: {drift.moved[0].told}"
    mark = newest_profile(store, settings, settings.model, settings.hardware, traffic.COMPILED)
    return engine_change(mark, profile) if mark is not None else ""
