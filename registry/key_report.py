"""What is known of each key, and what its holder must do with it: for people who perform ceremonies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gristmill import trust
from registry.expiry import Expiry
from registry.keys import KEY_NAMES, Keyring, is_encrypted

KEEP = {
    "root": "offline, each with another person; any 2 of them replace any key, all 3 lost ends the registry",
    "targets": "offline; needed to replace canary, stable, judge and approver",
    "snapshot": "on the workers that promote, release, roll back and renew",
    "timestamp": "on the workers that promote, release, roll back and renew",
    "canary": "on the workers that promote",
    "stable": "on the worker that releases",
    "revocation": "with those on call, and on a worker that revokes",
    "judge": "on the machine that judges, and nowhere else",
    "approver": "with those who approve; on no worker, unless a policy approves there",
}
"""Role to where its private keys belong."""


@dataclass(frozen=True)
class KeyFact:
    """One key."""

    name: str
    key_id: str
    kind: str
    """E.g. `ed25519`."""
    private: str
    """Where the private half is: `here`, `here, encrypted`, `in awskms`, or `elsewhere`."""
    trusted: bool | None
    """Whether the registry counts its signatures; None where there is no registry yet."""
    keep: str
    expires: str | None = None
    """Day until which what its role has signed counts; None for attestors, and where there is no registry yet."""


def facts(
    keyring: Keyring, trusted: Mapping[str, tuple[str, ...]] | None, expiries: Iterable[Expiry] = ()
) -> list[KeyFact]:
    """All keys of a set, in order of their roles.

    Args:
        trusted: `Repository.trusted_keys`, or None.
    """
    until = {one.role: f"{one.expires:%Y-%m-%d}" for one in expiries}
    return [
        KeyFact(
            name,
            key.keyid,
            key.keytype,
            _private(keyring, name),
            None if trusted is None else bool({key.keyid, trust.key_text(key)} & set(trusted.get(role, ()))),
            KEEP[role],
            until.get(role),
        )
        for role, names in KEY_NAMES.items()
        for name, key in zip(names, keyring.public[role], strict=False)
    ]


def _private(keyring: Keyring, name: str) -> str:
    uri = keyring.folder / f"{name}.uri"
    if uri.exists():
        return f"in {uri.read_text().partition(':')[0]}"
    if not keyring.is_here(name):
        return "elsewhere"
    return "here, encrypted" if is_encrypted(keyring.folder / f"{name}.pem") else "here"
