"""Cohorts: deterministic, as large as the share says, growing only by addition, and others for the next canary."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.cohort import ALL_PERMILLE, CohortPolicy, channel_name, in_cohort, parse_policy, salt_of
from gristmill.errors import TrustError
from gristmill.trust import Channel, Index

CHANNEL = Channel("canary", "chat", "llama", "hw")
HOSTS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2000)]
hosts = st.sampled_from(HOSTS)
salts = st.text(min_size=1, max_size=8)
shares = st.integers(0, ALL_PERMILLE)


def index(channel: str, number: int = 1, **tables: str) -> Index:
    return Index(channel, "chat", "llama", "hw", number, tables, None, None, "2026-12-02T00:00:00+00:00", "test")


def policy(share: int) -> CohortPolicy:
    return CohortPolicy({"chat": share})


@given(hosts, salts, shares, shares)
def test_a_larger_share_only_adds_hosts(host: str, salt: str, one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert in_cohort(host, CHANNEL, salt, small) <= in_cohort(host, CHANNEL, salt, large)


@given(hosts, salts)
def test_none_and_all(host: str, salt: str) -> None:
    assert not in_cohort(host, CHANNEL, salt, 0) and in_cohort(host, CHANNEL, salt, ALL_PERMILLE)


@pytest.mark.parametrize("share", [1, 50, 250, 500])
def test_the_cohort_is_about_as_large_as_the_share(share: int) -> None:
    """Over many canaries: hosts and salts are fixed, so this can't fail by chance."""
    drawn = [in_cohort(host, CHANNEL, f"salt {number}", share) for number in range(20) for host in HOSTS]
    expected = len(drawn) * share / ALL_PERMILLE
    assert abs(sum(drawn) - expected) < 5 * expected**0.5


def test_the_next_canary_tries_other_hosts() -> None:
    first, second = (
        {host for host in HOSTS if in_cohort(host, CHANNEL, salt, 100)}
        for salt in (salt_of(index("canary", rms_norm="a")), salt_of(index("canary", rms_norm="b")))
    )
    assert len(first & second) < len(first) / 2


def test_fleets_models_and_hardware_draw_apart() -> None:
    cohorts = [
        frozenset(host for host in HOSTS if in_cohort(host, channel, "salt", 100))
        for channel in (
            CHANNEL,
            dataclasses.replace(CHANNEL, fleet="code"),
            dataclasses.replace(CHANNEL, model="qwen"),
            dataclasses.replace(CHANNEL, hardware="hw2"),
        )
    ]
    assert len(set(cohorts)) == len(cohorts)


class TestChannel:
    @given(hosts, st.integers(1, 10**9), shares)
    def test_a_canary_keeps_its_cohort_whatever_its_number(self, host: str, number: int, share: int) -> None:
        stable = index("stable", rms_norm="a")
        chosen = [channel_name(host, policy(share), index("canary", n, rms_norm="b"), stable) for n in (1, number)]
        assert chosen[0] == chosen[1]

    @given(hosts, shares)
    def test_stable_when_there_is_no_canary(self, host: str, share: int) -> None:
        same = index("canary", 7, rms_norm="a")
        assert channel_name(host, policy(share), same, index("stable", 3, rms_norm="a")) == "stable"
        assert channel_name(host, policy(share), None, index("stable", rms_norm="a")) == "stable"
        assert channel_name(host, policy(share), index("canary"), None) == "stable"
        assert channel_name(host, policy(share), None, None) == "stable"

    @given(hosts)
    def test_nobody_without_a_policy_or_of_another_fleet(self, host: str) -> None:
        canary = index("canary", rms_norm="b")
        assert channel_name(host, None, canary, None) == "stable"
        assert channel_name(host, CohortPolicy({"other": ALL_PERMILLE}), canary, None) == "stable"
        assert channel_name(host, policy(ALL_PERMILLE), canary, None) == "canary"


class TestPolicy:
    def test_round_trip(self) -> None:
        assert parse_policy(records.canonical_json(policy(50))) == policy(50)

    @pytest.mark.parametrize("share", [-1, ALL_PERMILLE + 1, 10**30])
    def test_a_share_that_is_none_is_refused(self, share: int) -> None:
        with pytest.raises(TrustError, match="expected 0 to 1000"):
            parse_policy(records.canonical_json(policy(share)))

    @pytest.mark.parametrize("content", [b"", b"{}", b'{"permille":{"chat":true}}', b'{"permille":{},"more":1}'])
    def test_malformed(self, content: bytes) -> None:
        with pytest.raises(TrustError):
            parse_policy(content)


def test_a_canary_that_only_lacks_what_stable_serves_is_none() -> None:
    stable = index("stable", rms_norm="a", softmax="b")
    for less in (index("canary"), index("canary", rms_norm="a")):
        assert {channel_name(host, policy(ALL_PERMILLE), less, stable) for host in HOSTS[:20]} == {"stable"}
    other = index("canary", rms_norm="c")
    assert {channel_name(host, policy(ALL_PERMILLE), other, stable) for host in HOSTS[:20]} == {"canary"}
