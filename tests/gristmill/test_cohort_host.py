"""Hosts set to `auto` against a real registry: each follows its cohort, from signed data alone, and none gets stuck."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gristmill import cohort, machine, records, trust
from gristmill.cohort import AUTO, CohortPolicy
from gristmill.errors import StoreUnreachableError, TrustError
from gristmill.generation import Generation
from gristmill.pull import Puller
from gristmill.store import NotModified, StoredObject
from registry.metadata_reader import MetadataReader
from registry.metadata_writer import MetadataWriter, refer
from registry.publication import move
from registry.rollback import roll_back
from registry.root_chain import read_chain
from registry.share import set_share
from tests.registry.world import CANARY, DelegatingStore, World

HOSTS = 6


class Fleet:
    """Hosts with ids of their own, so that cohorts are the same in each run."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.hosts = [self.host(number) for number in range(HOSTS)]
        self.serving: list[Generation | None] = [None] * HOSTS

    def host(self, number: int) -> Puller:
        folder = self.world.folder / f"host {number}"
        folder.mkdir(exist_ok=True)
        (folder / "host_id").write_text(records.sha256_hex(f"host {number}".encode()))
        puller = self.world.puller(cache=folder.name)
        return Puller(
            self.world.store, puller._root, CANARY.fleet, CANARY.model, CANARY.hardware, AUTO, puller.cache.folder
        )

    def poll(self) -> list[str]:
        """What each host serves after a poll: the channel's initial, and the code of each kernel."""
        for number, host in enumerate(self.hosts):
            self.serving[number] = host.poll() or self.serving[number]
        return [served(generation) for generation in self.serving]

    def share(self, permille: int) -> None:
        set_share(self.world.store, self.world.keyring, CANARY.fleet, permille)

    def release(self) -> None:
        move(self.world.store, self.world.keyring, CANARY)


def served(generation: Generation | None) -> str:
    if generation is None:
        return ""
    codes = sorted(path.read_bytes().decode().removeprefix("code ") for path in generation.objects.values())
    return f"{generation.channel[0]}:{''.join(codes)}"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def tried_on(states: list[str]) -> set[int]:
    return {number for number, state in enumerate(states) if state.startswith("c:")}


def test_a_canary_from_the_first_share_to_stable(fleet: Fleet) -> None:
    world = fleet.world
    world.publish("rms_norm", b"code 1")
    assert fleet.poll() == [""] * HOSTS, "no share was signed, so nobody is in a cohort"
    fleet.share(400)
    some = fleet.poll()
    assert 0 < len(tried_on(some)) < HOSTS
    assert {some[number] for number in tried_on(some)} == {"c:1"}
    assert set(some) == {"c:1", ""}, "stable has nothing yet"
    fleet.share(700)
    more = fleet.poll()
    assert tried_on(more) > tried_on(some) and len(tried_on(more)) < HOSTS, "a larger share only adds hosts"
    fleet.release()
    assert fleet.poll() == ["s:1"] * HOSTS, "there is no canary any more"
    assert fleet.poll() == ["s:1"] * HOSTS

    fleet.share(400)
    world.publish("softmax", b"code 2")
    second = fleet.poll()
    assert set(second) == {"c:12", "s:1"}
    assert tried_on(second) != tried_on(some), "the next canary tries others"
    roll_back(world.store, world.keyring, CANARY)
    assert fleet.poll() == ["s:1"] * HOSTS


def test_leaving_a_canary_that_stable_never_followed_leaves_no_kernel_behind(fleet: Fleet) -> None:
    fleet.share(1000)
    fleet.world.publish("rms_norm", b"code 1")
    assert fleet.poll() == ["c:1"] * HOSTS
    roll_back(fleet.world.store, fleet.world.keyring, CANARY)
    assert fleet.poll() == ["s:"] * HOSTS
    assert [host.last_good() for host in map(fleet.host, range(HOSTS))] == [None] * HOSTS
    assert fleet.poll() == ["s:"] * HOSTS


def test_an_offline_start_goes_on_with_what_was_followed(fleet: Fleet) -> None:
    fleet.share(400)
    fleet.world.publish("rms_norm", b"code 1")
    fleet.release()
    fleet.poll()
    fleet.world.publish("softmax", b"code 2")
    online = fleet.poll()
    assert set(online) == {"c:12", "s:1"}
    assert [served(fleet.host(number).last_good()) for number in range(HOSTS)] == online
    roll_back(fleet.world.store, fleet.world.keyring, CANARY)
    assert [served(fleet.host(number).last_good()) for number in range(HOSTS)] == online, "nobody has polled"
    fleet.poll()
    assert [served(fleet.host(number).last_good()) for number in range(HOSTS)] == ["s:1"] * HOSTS


@pytest.mark.parametrize("damage", [b"", b"nightly", b"\xff", None])
def test_a_damaged_note_of_what_was_followed_leads_to_stable(fleet: Fleet, damage: bytes | None) -> None:
    fleet.world.publish("rms_norm", b"code 1")
    fleet.release()
    fleet.share(1000)
    fleet.world.publish("softmax", b"code 2")
    assert fleet.poll() == ["c:12"] * HOSTS
    note = fleet.hosts[0].cache.folder / "followed" / CANARY.fleet / CANARY.model / CANARY.hardware
    note.unlink() if damage is None else note.write_bytes(damage)
    again = fleet.host(0)
    assert served(again.last_good()) == "", "it never took what stable serves"
    assert served(again.poll()) == "c:12"


def test_a_poll_without_news_is_one_conditional_request(fleet: Fleet) -> None:
    fleet.share(400)
    fleet.world.publish("rms_norm", b"code 1")
    fleet.poll()
    for host in fleet.hosts:
        host._store = store = DelegatingStore(fleet.world.store)
        assert host.poll() is None and store.reads == ["tuf/timestamp.json"]


class TestWhoMayDecide:
    """Signed data alone leads a host onto canary, and only the offline key says how many."""

    def test_the_canary_key_cannot_sign_a_share(self, fleet: Fleet) -> None:
        """It may sign anything below `canary/`, and the share is not there."""
        world = fleet.world
        world.publish("rms_norm", b"code 1")
        reader, writer = MetadataReader(world.store), MetadataWriter(world.store, world.keyring)
        state = reader.read(read_chain(world.store, world.repository.initialise())[-1])
        role = reader.role(state, "canary")
        everybody = records.canonical_json(CohortPolicy({CANARY.fleet: 1000}))
        writer.put_target(role, cohort.POLICY_PATH, everybody)
        role.signed.version += 1
        writer.put_bumping(role, "canary")
        refer(state.snapshot, role, "canary")
        writer.publish_snapshot(state)
        assert fleet.poll() == [""] * HOSTS

    @pytest.mark.parametrize("how", ["index", "metadata", "gone"])
    def test_a_broken_canary_keeps_nobody_from_stable(self, fleet: Fleet, how: str) -> None:
        """Its key may be stolen. Hosts that served it go to stable, too."""
        world = fleet.world
        world.publish("rms_norm", b"code 1")
        fleet.release()
        fleet.share(400)
        world.publish("softmax", b"code 2")
        assert set(fleet.poll()) == {"c:12", "s:1"}
        current = world.repository.current(CANARY)
        assert current is not None
        world.repository.renew()
        key = trust.target_key(CANARY.index_path, current.sha256)
        if how == "index":
            world.path(key).write_bytes(b"{}")
        elif how == "gone":
            world.path(key).unlink()
        else:
            world.path(f"tuf/{world.repository.live().versions['canary']}.canary.json").write_bytes(b"{}")
        for host in fleet.hosts:  # what was verified before lies in their caches
            host.cache.blob_path(current.sha256).unlink()
            (host.cache.tuf / "canary.json").unlink(missing_ok=True)
        assert fleet.poll() == ["s:1"] * HOSTS

    def test_a_store_that_is_away_is_no_reason_to_leave_canary(self, fleet: Fleet) -> None:
        fleet.share(1000)
        fleet.world.publish("rms_norm", b"code 1")
        fleet.poll()
        fleet.world.publish("softmax", b"code 2")

        class AwayStore(DelegatingStore):
            def get(self, key: str, etag: str | None = None, max_bytes: int = 1 << 28) -> StoredObject | NotModified:
                if key.startswith("targets/canary"):
                    raise StoreUnreachableError("nothing answers")
                return super().get(key, etag, max_bytes)

        host = fleet.hosts[0]
        host._store = AwayStore(fleet.world.store)
        with pytest.raises(StoreUnreachableError, match="nothing answers"):
            host.poll()
        host._store = fleet.world.store
        assert served(host.poll()) == "c:12"

    def test_a_share_that_is_none_is_refused_and_the_last_good_stays(self, fleet: Fleet) -> None:
        world = fleet.world
        world.publish("rms_norm", b"code 1")
        fleet.release()
        assert fleet.poll() == ["s:1"] * HOSTS
        reader, writer = MetadataReader(world.store), MetadataWriter(world.store, world.keyring)
        state = reader.read(read_chain(world.store, world.repository.initialise())[-1])
        writer.put_target(state.targets, cohort.POLICY_PATH, b'{"permille":{"chat":5000},"schema_version":1}')
        state.targets.signed.version += 1
        writer.put_bumping(state.targets, "targets")
        refer(state.snapshot, state.targets, "targets")
        writer.publish_snapshot(state)
        with pytest.raises(TrustError, match="5000 thousandths of fleet chat"):
            fleet.hosts[0].poll()
        assert served(fleet.host(0).last_good()) == "s:1"


def test_a_host_that_was_copied_to_another_machine_draws_its_own_cohort(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "machine-id"
    monkeypatch.setattr(machine, "SOURCES", {"machine_id": name})
    name.write_text("1" * 32)
    fleet.share(500)
    fleet.world.publish("rms_norm", b"code 1")
    fleet.poll()
    for number in range(HOSTS):
        shutil.copytree(fleet.world.folder / f"host {number}", fleet.world.folder / f"host {number + HOSTS}")
    name.write_text("2" * 32)
    (tries, *_) = [host for host in fleet.hosts if host.channel == CANARY]
    assert tries._followed is not None
    salt = cohort.salt_of(trust.parse_index(tries.cache.find(tries._followed.index_sha256) or b"", CANARY))
    for number, host in enumerate(fleet.hosts):
        folder = fleet.world.folder / f"host {number + HOSTS}"
        copy = Puller(fleet.world.store, host._root, CANARY.fleet, CANARY.model, CANARY.hardware, AUTO, folder)
        copy.last_good()
        copy.poll()
        assert copy.cache.host_id() != host.cache.host_id()
        chosen = cohort.in_cohort(copy.cache.host_id(), CANARY, salt, 500)
        assert copy.channel.name == ("canary" if chosen else "stable")
