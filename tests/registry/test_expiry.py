"""Expiry: told while there is time, and put off with the same keys; hosts follow."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gristmill.errors import GristmillError
from registry.ceremony import renew, rotate
from registry.errors import CeremonyError, KeyFileError
from registry.expiry import OFFLINE, Expiry, expiries, finding, warnings
from registry.keys import load_keys, make_key
from registry.metadata_writer import LIFETIMES
from tests.registry.world import CANARY, DyingStore, Killed, World

DAY = timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.publish("rms_norm", b"code 1")
    return world


def age(world: World, role: str, left: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves a role's signature so long to live."""
    with monkeypatch.context() as patched:
        patched.setitem(LIFETIMES, role, left)
        renew(world.store, world.keyring, [role])


def days_left(world: World) -> dict[str, int]:
    return {one.role: round((one.expires - datetime.now(UTC)) / DAY) for one in expiries(world.repository)}


class TestWarnings:
    def test_nothing_of_a_new_registry(self, world: World) -> None:
        found = expiries(world.repository)
        assert {one.role for one in found} == set(LIFETIMES) and warnings(found) == ()
        assert finding(found).passed and "root until" in finding(found).detail

    @pytest.mark.parametrize("role", LIFETIMES)
    def test_from_thirty_days_before_or_half_of_a_shorter_life(self, role: str) -> None:
        expires = datetime(2027, 1, 1, tzinfo=UTC)
        one, before = Expiry(role, expires), min(30 * DAY, LIFETIMES[role] / 2)
        assert warnings((one,), expires - before) == ()
        (told,) = warnings((one,), expires - before + timedelta(seconds=1))
        assert told.startswith(f"{role} expires on 2027-01-01, in ") and one.command in told and "\n" not in told
        advice, fault = finding((one,), expires - DAY), finding((one,), expires)
        assert (advice.passed, advice.essential) == (False, False)
        assert (fault.passed, fault.essential) == (False, True) and "HAS EXPIRED" in fault.detail

    @pytest.mark.parametrize("role", OFFLINE)
    def test_name_the_command_that_helps(self, world: World, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
        age(world, role, 20 * DAY, monkeypatch)
        (told,) = warnings(expiries(world.repository))
        assert f"./mill keys renew {role}" in told and "in 20 days" in told
        world.repository.renew()
        assert warnings(expiries(world.repository)) == (told,)


class TestRenewal:
    @pytest.mark.parametrize("role", OFFLINE)
    def test_of_what_has_expired_brings_hosts_back(
        self, world: World, role: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = {path.name: path.read_bytes() for path in world.keyring.folder.iterdir()}
        puller = world.puller()
        first = puller.poll()
        age(world, role, -DAY, monkeypatch)
        with pytest.raises(GristmillError, match="expired"):
            puller.poll()
        renew(world.store, world.keyring, OFFLINE)
        assert days_left(world)[role] == 365
        second = world.publish("softmax", b"code 2")
        for host in (puller, world.puller("fresh")):
            served = host.poll()
            assert first and served and served.number == second.number
        assert {n: c for n, c in keys.items() if n != "ceremony.lock"} == {
            path.name: path.read_bytes() for path in world.keyring.folder.iterdir() if path.name != "ceremony.lock"
        }

    def test_of_one_leaves_the_other(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        for role in OFFLINE:
            age(world, role, 20 * DAY, monkeypatch)
        renew(world.store, world.keyring, ["targets"])
        left = days_left(world)
        assert (left["root"], left["targets"]) == (20, 365)

    def test_needs_no_key_of_the_other_roles(self, world: World, tmp_path: Path) -> None:
        """Two root keys, and those that make a change current."""
        folder = tmp_path / "part"
        shutil.copytree(world.keyring.folder, folder)
        for name in ("root-3", "targets", "canary", "stable", "revocation", "judge", "approver"):
            (folder / f"{name}.pem").unlink()
        renew(world.store, load_keys(folder), ["root"])
        with pytest.raises(KeyFileError, match=r"targets\.pem is missing"):
            renew(world.store, load_keys(folder), ["targets"])
        (folder / "root-2.pem").unlink()
        with pytest.raises(CeremonyError, match="too few root keys"):
            renew(world.store, load_keys(folder), ["root"])
        world.puller().poll()

    def test_waits_for_a_ceremony_that_was_cut_off(self, world: World) -> None:
        with pytest.raises(Killed):
            rotate(DyingStore(world.store, 0), world.keyring, ["root-1"], lambda _, stem: _make(world, stem))
        with pytest.raises(CeremonyError, match="replacing root-1 was not finished"):
            renew(world.store, world.keyring, ["root"])

    def test_killed_before_any_write_is_finished_by_the_next(self, world: World) -> None:
        for write in range(20):
            try:
                renew(DyingStore(world.store, write), world.keyring, OFFLINE)
                break
            except Killed:
                world.puller(f"after {write}").poll()
                assert world.repository.current(CANARY) is not None
        else:
            pytest.fail("it never ended")
        renew(world.store, world.keyring, OFFLINE)
        world.puller().poll()


def _make(world: World, stem: str) -> None:
    make_key(world.keyring.folder, stem)
