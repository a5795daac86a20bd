"""Whose channel a command means: each kind of hardware has its own, and who commands may sit before another machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gristmill.errors import GristmillError
from registry.repository import Repository
from tasks import object_store
from tasks.errors import HardwareChoiceError
from tasks.promotion import keyring_of
from tasks.settings import Settings

ALL = "all"
R = TypeVar("R")


@dataclass(frozen=True)
class Outcomes(Generic[R]):
    """What came of one command on each kind of hardware, by its key."""

    done: dict[str, R]
    failed: dict[str, str]
    """To the reason."""

    def whole(self) -> dict[str, R]:
        """What was done everywhere.

        Raises:
            HardwareChoiceError: it could not be done on some; on the others it was.
        """
        if self.failed:
            told = "; ".join(f"{key}: {why}" for key, why in self.failed.items())
            raise HardwareChoiceError(f"done for {', '.join(self.done) or 'no hardware'}, not for {told}")
        return self.done


def chosen(settings: Settings, written: str) -> tuple[Settings, ...]:
    """The settings that a person means.

    Args:
        written: a hardware key that something was published for; `all` of them; or nothing: this machine's own, which
            will do as well while nothing was published for any.

    Raises:
        HardwareChoiceError: there is no such channel; it tells which there are.
    """
    with object_store.opened(settings) as opened:
        repository = Repository(opened.store, keyring_of(settings))
        channels = repository.channels() if repository.exists() else ()
    known = sorted({one.hardware for one in channels if (one.fleet, one.model) == (settings.fleet, settings.model)})
    wanted = written.strip()
    if wanted == ALL:
        return tuple(replace(settings, hardware=key) for key in known) or (settings,)
    key = wanted or settings.hardware
    if key in (known or [settings.hardware]):
        return (replace(settings, hardware=key),)
    found = f"--hardware {wanted!r}" if wanted else f"this machine's hardware, {key}"
    expected = ", ".join([*known, ALL] if known else [settings.hardware])
    raise HardwareChoiceError(
        f"{found}: nothing was published for it to fleet {settings.fleet}, model {settings.model}; expected --hardware "
        f"with one of {expected}"
    )


def for_each(settings: Settings, written: str, act: Callable[[Settings], R]) -> Outcomes[R]:
    """Does something with each channel that a person means: what fails on some hardware keeps it from no other.

    Raises:
        GristmillError: as `chosen`; and as `act`, where one channel alone is meant.
    """
    several = written.strip() == ALL
    done: dict[str, R] = {}
    failed: dict[str, str] = {}
    for one in chosen(settings, written):
        try:
            done[one.hardware] = act(one)
        except GristmillError as error:
            if not several:
                raise
            failed[one.hardware] = str(error)
    return Outcomes(done, failed)
