"""Until when signatures count: what nobody renews ends by itself, and hosts then take nothing new.

Those of the online keys are renewed by the schedule (`Repository.renew`); root and targets by a person, with the same
keys (`registry.ceremony.renew`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gristmill import revocation
from registry.doctor import Finding
from registry.metadata_writer import LIFETIMES
from registry.repository import Repository

WARNING_TIME = timedelta(days=30)
OFFLINE = ("root", "targets")
"""Roles whose signatures no schedule renews."""


@dataclass(frozen=True)
class Expiry:
    """Until when what a role has signed counts."""

    role: str
    expires: datetime

    def is_near(self, now: datetime) -> bool:
        """Whether somebody should have renewed it: 30 days before, or in the second half of a shorter life."""
        return self.expires - now < min(WARNING_TIME, LIFETIMES[self.role] / 2)

    @property
    def command(self) -> str:
        """What renews it, and where."""
        if self.role == "root":
            return "./mill keys renew root, where two of its keys are"
        if self.role == "targets":
            return "./mill keys renew targets, where its key is"
        if self.role == revocation.ROLE:
            return "./mill renew, where the revocation key is"
        return "./mill renew, or look why the scheduled one does not"

    def warning(self, now: datetime) -> str:
        """In one line."""
        days = (self.expires - now) / timedelta(days=1)
        when = f"expires on {self.expires:%Y-%m-%d}, in {days:.0f} days" if days > 0 else "HAS EXPIRED"
        return f"{self.role} {when}; from then on hosts take nothing new; run {self.command}"


def expiries(repository: Repository) -> tuple[Expiry, ...]:
    """Of all roles, in the order in which they sign one another."""
    return tuple(Expiry(role, expires) for role, expires in repository.expiries().items())


def warnings(found: tuple[Expiry, ...], now: datetime | None = None) -> tuple[str, ...]:
    """What must be renewed soon, a line each; nothing if all is well."""
    now = now or datetime.now(UTC)
    return tuple(one.warning(now) for one in found if one.is_near(now))


def finding(found: tuple[Expiry, ...], now: datetime | None = None) -> Finding:
    """The same for `registry doctor`: what has expired stops every host, what soon will is advice."""
    now = now or datetime.now(UTC)
    told = warnings(found, now)
    if told:
        return Finding("expiry", False, "; ".join(told), essential=any(one.expires <= now for one in found))
    first = min(found, key=lambda one: one.expires)
    offline = ", ".join(f"{one.role} until {one.expires:%Y-%m-%d}" for one in found if one.role in OFFLINE)
    return Finding("expiry", True, f"{offline}; the first to expire is {first.role}, on {first.expires:%Y-%m-%d}")
