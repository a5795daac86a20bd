"""The cohort: which hosts of a fleet try what canary serves before all others get it.

A host set to `auto` decides that by itself, and from signed data alone: the share of its fleet comes from a TUF target
of the offline targets role, the salt from the canary's own index. So whoever holds the online keys can't lead more of
the fleet onto canary than its owners have allowed, and each canary tries other hosts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gristmill import records
from gristmill.errors import MalformedRecordError, TrustError
from gristmill.trust import CHANNELS, Channel, Index

CANARY, STABLE = CHANNELS
AUTO = "auto"
"""Setting of a host that follows canary or stable as its cohort says."""
FOLLOWING = (*CHANNELS, AUTO)
POLICY_PATH = "policy/cohort.json"
"""TUF target of the `CohortPolicy`."""
ALL_PERMILLE = 1000
_HASH_BITS = 64


@dataclass(frozen=True)
class CohortPolicy:
    """How many hosts may be tried upon."""

    permille: dict[str, int]
    """Fleet to the thousandths of its `auto` hosts that follow canary. A fleet that is not named has none."""
    schema_version: int = 1

    def share(self, fleet: str) -> int:
        return self.permille.get(fleet, 0)


def parse_policy(content: bytes) -> CohortPolicy:
    """Decodes a policy whose digest has been verified.

    Raises:
        TrustError: malformed, or a share that is none.
    """
    try:
        policy = records.parse(CohortPolicy, content, "cohort policy")
    except MalformedRecordError as error:
        raise TrustError(str(error)) from None
    for fleet, share in policy.permille.items():
        if not 0 <= share <= ALL_PERMILLE:
            raise TrustError(f"cohort policy: {share} thousandths of fleet {fleet}; expected 0 to {ALL_PERMILLE}")
    return policy


def channel_name(host: str, policy: CohortPolicy | None, canary: Index | None, stable: Index | None) -> str:
    """The channel that an `auto` host follows now.

    While canary serves nothing that stable does not serve, there is no canary, and stable, which two attestors vouch
    for, is followed: whoever rolls canary back below stable tries nothing.

    Args:
        host: `Cache.host_id`.
        policy: None if none was ever published: then nobody is in a cohort.
        canary, stable: what the channels of this host serve; None if nothing was ever published there.
    """
    if canary is None or policy is None or not tries(canary.tables, stable.tables if stable else {}):
        return STABLE
    channel = Channel(CANARY, canary.fleet, canary.model, canary.hardware)
    return CANARY if in_cohort(host, channel, salt_of(canary), policy.share(canary.fleet)) else STABLE


def tries(canary: Mapping[str, str], stable: Mapping[str, str]) -> bool:
    """Whether some table of canary, by name and manifest digest, is not stable's."""
    return not canary.items() <= stable.items()


def salt_of(canary: Index) -> str:
    """Stays for one canary, which is one set of tables, through renewals and rollbacks to it; differs for the next."""
    return records.digest(canary.tables)


def in_cohort(host: str, channel: Channel, salt: str, share_permille: int) -> bool:
    """Whether a host is among so many thousandths. A larger share only adds hosts; each salt draws anew."""
    drawn = hashlib.sha256(f"{salt}/{channel.fleet}/{channel.model}/{channel.hardware}/{host}".encode()).digest()
    return int.from_bytes(drawn[: _HASH_BITS // 8]) * ALL_PERMILLE < share_permille << _HASH_BITS
