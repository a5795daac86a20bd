"""A model that gives no answer for a while: how long to pause before it is asked again, and when to give it up."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.backoff import Backoff
from agents.errors import ModelError, RequestRefusedError


@dataclass(frozen=True)
class Patience:
    """With a model that may come back."""

    pauses: Backoff = field(default=Backoff(1.0, 60.0, drawn=0.5))
    outage_s: float = 600.0
    """So long without an answer, and the agent leaves."""


@dataclass(frozen=True)
class Outage:
    """Failures in a row, on whatever clock its caller has."""

    began_s: float
    """When the first of them was known."""
    failures: int = 1

    def lasted_s(self, now_s: float) -> float:
        return now_s - self.began_s


def after_failure(outage: Outage | None, now_s: float) -> Outage:
    """The outage with one more failure; None: the last call was answered."""
    return Outage(now_s) if outage is None else Outage(outage.began_s, outage.failures + 1)


def pause_s(outage: Outage, error: ModelError, patience: Patience, now_s: float, draw: float) -> float | None:
    """How long to wait before the model is asked again; None: it is not to be asked any more. See `Backoff.pause_s`."""
    if isinstance(error, RequestRefusedError) or outage.lasted_s(now_s) >= patience.outage_s:
        return None
    return patience.pauses.pause_s(outage.failures, error, draw)


def farewell(outage: Outage, error: ModelError, now_s: float) -> str:
    """Why an agent leaves whose model is not to be asked any more."""
    if isinstance(error, RequestRefusedError):
        return str(error)
    return f"no answer for {lasting(outage.lasted_s(now_s))}, {outage.failures} calls in a row; the last: {error}"


def lasting(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
