"""Collection: exactly what nothing needs goes, whatever promoters and other collections do at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import durable_file, store, trust
from gristmill.s3_store import Endpoint, S3Store
from gristmill.status_report import report_key
from gristmill.store import MAX_OBJECT_BYTES, Listing, NotModified, ObjectStore, StoredObject
from registry import garbage
from registry.embedded_store import EmbeddedStore
from registry.errors import CollectionError, RegistryStateError, RollbackTargetError
from registry.garbage import DAY_S, KeepingPolicy, Marked, Swept, collect, plan_collection
from registry.metadata_reader import TIMESTAMP_KEY
from registry.repository import Live
from registry.rollback import history, roll_back
from tests.registry.world import CANARY, BeforeTimestamp, DelegatingStore, Killed, World, copied, cut_promotions

SHORT = KeepingPolicy(keep_s=0, keep_states=2)


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_file, "sync_folder", lambda folder: None)


class SteppingStore(DelegatingStore):
    """Does something before its n-th operation, counted from 0."""

    def __init__(self, inner: ObjectStore, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self.act = at, act

    def _step(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.act()

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        self._step()
        return self.inner.get(key, etag, max_bytes)

    def put_new(self, key: str, content: bytes) -> str:
        self._step()
        return self.inner.put_new(key, content)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        self._step()
        return self.inner.replace_if(key, content, etag)

    def scan(self, prefix: str) -> Iterator[Listing]:
        self._step()
        return self.inner.scan(prefix)

    def delete(self, key: str) -> None:
        self._step()
        self.inner.delete(key)


def clean(world: World, through: ObjectStore | None = None, policy: KeepingPolicy = SHORT) -> Swept:
    object_store = through or world.store
    return collect(object_store, World(world.folder, object_store).repository, policy)


def age(world: World, days: float = 2) -> None:
    """Makes everything in the store so much older."""
    for found in world.store.scan(""):
        os.utime(world.path(found.key), (found.modified_s - days * DAY_S,) * 2)


def kept(world: World) -> set[str]:
    return set(world.store.list(""))


def check_served(world: World, *operators: str) -> None:
    """A host that has nothing yet gets all of it."""
    found = world.puller(f"cache-{uuid.uuid4().hex}").poll()
    assert found is not None and {table.operator for table in found.tables} == set(operators)


@pytest.fixture(scope="module")
def shared_base(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("base"))
    world.publish("rms_norm", b"code 1")
    return world


@pytest.fixture
def base(shared_base: World, tmp_path: Path) -> World:
    return copied(shared_base, tmp_path / "base")


@pytest.fixture
def orphaned(base: World) -> World:
    """A promoter was killed just before its publication was seen, long ago."""
    with pytest.raises(Killed):
        base.publish("softmax", b"code 2", store=BeforeTimestamp(base.store))
    age(base)
    return base


class TestWhatGoes:
    def test_nothing_that_is_young(self, base: World) -> None:
        with pytest.raises(Killed):
            base.publish("softmax", b"code 2", store=BeforeTimestamp(base.store))
        before = kept(base)
        assert clean(base) == Swept((), ())
        assert kept(base) == before

    def test_orphans_of_a_promoter_killed_between_any_two_writes(self, base: World, tmp_path: Path) -> None:
        pure = copied(base, tmp_path / "pure")
        age(pure)
        clean(pure)
        orphans = 0
        for write, world in cut_promotions(base, tmp_path):
            age(world)
            orphans += len(kept(world) - kept(pure))
            swept = clean(world)
            assert kept(world) >= kept(pure) and not swept.spared and all(item.why for item in swept.removed)
            unpassed = kept(world) - kept(pure)
            assert all(key.startswith("tuf/") for key in unpassed), f"killed before write {write}"
            check_served(world, "rms_norm")
            world.publish("softmax", b"code 2")
            age(world)
            clean(world)
            assert not unpassed & kept(world)
            check_served(world, "rms_norm", "softmax")
        assert write > 8 and orphans > write + 1

    def test_a_dry_run_says_the_same_and_removes_nothing(self, orphaned: World) -> None:
        before = kept(orphaned)
        said = collect(orphaned.store, orphaned.repository, SHORT, dry_run=True)
        assert kept(orphaned) == before
        assert clean(orphaned) == said
        assert kept(orphaned) == before - {item.found.key for item in said.removed}
        assert {item.kind for item in said.removed} == {"blob", "attestation", "index", "metadata"}
        assert sum(item.found.size_bytes for item in said.removed) > 1000

    def test_states_that_nobody_goes_back_to(self, base: World) -> None:
        base.puller("old host").poll()
        for turn in range(2, 6):
            base.publish("rms_norm", f"code {turn}".encode())
        age(base)
        assert clean(base, policy=KeepingPolicy(keep_s=30 * DAY_S, keep_states=2)).removed
        assert len(history(base.store, base.keyring, CANARY)) == 5, "within the keeping period"
        swept = clean(base)
        assert {item.kind for item in swept.removed} == {"blob", "attestation", "index", "metadata"}
        assert [entry.index.number for entry in history(base.store, base.keyring, CANARY)] == [6, 5]
        assert clean(base) == Swept((), ())
        assert base.puller("old host").poll() is not None
        assert roll_back(base.store, base.keyring, CANARY).number == 7
        with pytest.raises(RollbackTargetError, match="removed"):
            roll_back(base.store, base.keyring, CANARY)
        with pytest.raises(RollbackTargetError, match="no state 2"):
            roll_back(base.store, base.keyring, CANARY, to=2)
        check_served(base, "rms_norm")

    def test_a_state_is_as_old_as_the_one_that_took_its_place(self, base: World) -> None:
        """What was served for a year, and replaced yesterday, is what somebody rolls back to tomorrow."""
        age(base, 365)
        for turn in range(2, 5):
            base.publish("rms_norm", f"code {turn}".encode())
        clean(base, policy=KeepingPolicy(keep_s=7 * DAY_S, keep_states=2))
        assert len(history(base.store, base.keyring, CANARY)) == 4
        assert roll_back(base.store, base.keyring, CANARY, to=2).number == 6
        check_served(base, "rms_norm")

    def test_nothing_of_others(self, orphaned: World) -> None:
        others = ["spool/x", "blobs/readme", "tuf/notes.txt", "tuf/9.revocation.json", "tuf/77.root.json", "blobsy/x"]
        for key in others:
            orphaned.store.put(key, b"x")
        orphaned.store.put("probe/dead/object", b"x")
        age(orphaned)
        clean(orphaned)
        assert set(others) | {"tuf/1.root.json", TIMESTAMP_KEY} <= kept(orphaned)
        assert not any(key.startswith("probe/") for key in kept(orphaned))

    def test_reports_of_hosts_that_are_gone(self, base: World) -> None:
        """Whatever is tried meanwhile: what the watch has to remember of them it has written down."""
        for name in ("gone", "back"):
            base.store.put(report_key(CANARY, name), b"{}")
        age(base, 8)
        base.store.put(report_key(CANARY, "back"), b"{}")
        swept = clean(base, policy=KeepingPolicy(keep_states=2, reports_s=7 * DAY_S))
        reports = [item for item in swept.removed if item.kind == "report"]
        assert [item.found.key for item in reports] == [report_key(CANARY, "gone")] and "days" in reports[0].why
        assert report_key(CANARY, "back") in kept(base)
        check_served(base, "rms_norm")

    def test_a_host_that_reports_between_listing_and_removal_is_heard(self, base: World) -> None:
        key = report_key(CANARY, "slow")
        base.store.put(key, b"{}")
        age(base, 8)
        act = lambda: base.store.put(key, b'{"new": 1}')  # noqa: E731
        swept = clean(base, BeforeReading(base.store, key, act))
        assert [item.found.key for item in swept.spared] == [key] and store.read(base.store, key) == b'{"new": 1}'

    def test_every_channel_of_every_fleet_keeps_its_own(self, base: World) -> None:
        for name in ("canary", "stable"):
            channel = trust.Channel(name, "other", "llama", CANARY.hardware)
            base.repository.commit(channel, lambda current: garbage_edit(base))
        age(base)
        clean(base)
        live = base.repository.live()
        assert len(live.states) == 3
        check_served(base, "rms_norm")


def garbage_edit(world: World):  # type: ignore[no-untyped-def]
    from registry.entry import Edit

    entry = world.repository.current(CANARY)
    assert entry is not None
    return Edit(dict(entry.index.tables), "as elsewhere")


class TestRefusals:
    def test_metadata_that_our_keys_did_not_sign(self, orphaned: World) -> None:
        for path in orphaned.path("tuf").glob("*.snapshot.json"):
            path.write_bytes(path.read_bytes().replace(b"canary", b"canarx"))
        age(orphaned)
        before = kept(orphaned)
        with pytest.raises(RegistryStateError):
            clean(orphaned)
        assert kept(orphaned) == before

    def test_a_current_manifest_that_is_missing(self, orphaned: World) -> None:
        entry = orphaned.repository.current(CANARY)
        assert entry is not None
        orphaned.store.delete(trust.blob_key(entry.index.tables["rms_norm.float32"]))
        before = kept(orphaned)
        with pytest.raises(CollectionError, match="restore it"):
            clean(orphaned)
        assert kept(orphaned) == before

    @pytest.mark.parametrize(
        "wrong", [{"reports_s": 3600}, {"keep_s": -1}, {"keep_states": 1}, {"grace_s": 60}, {"keep_s": float("nan")}]
    )
    def test_policies_that_keep_too_little(self, wrong: dict[str, float]) -> None:
        with pytest.raises(CollectionError, match="expected at least"):
            KeepingPolicy(**wrong)  # type: ignore[arg-type]


class TestAtTheSameTime:
    def test_a_collection_between_any_two_steps_of_a_promotion(self, orphaned: World, tmp_path: Path) -> None:
        """The promotion needs just what lies there forgotten."""
        for step in range(200):
            world = copied(orphaned, tmp_path / f"{step}")
            stepping = SteppingStore(world.store, step, lambda world=world: clean(world))  # type: ignore[misc]
            world.publish("softmax", b"code 2", store=stepping)
            check_served(world, "rms_norm", "softmax")
            if stepping.left >= 0:
                break
        assert 20 < step < 199

    def test_a_promotion_between_any_two_steps_of_a_collection(self, orphaned: World, tmp_path: Path) -> None:
        """Each object takes four, so that every third meets all of them at one object or another."""
        for step in range(0, 400, 3):
            world = copied(orphaned, tmp_path / f"{step}")
            stepping = SteppingStore(world.store, step, lambda world=world: world.publish("softmax", b"code 2"))  # type: ignore[misc]
            clean(world, stepping)
            if stepping.left >= 0:
                break
            assert not clean(world).spared
            check_served(world, "rms_norm", "softmax")
        assert 40 < step < 399

    def test_a_collection_that_had_looked_before_the_promotion_made_it_young(
        self, orphaned: World, tmp_path: Path
    ) -> None:
        """It stops before it deletes a blob, the promotion goes on to any of its steps, then both go on."""
        for step in range(200):
            world = copied(orphaned, tmp_path / f"{step}")
            stopped, go_on = threading.Event(), threading.Event()

            def wait(stopped: threading.Event = stopped, go_on: threading.Event = go_on) -> None:
                stopped.set()
                assert go_on.wait(60)

            stepping = SteppingStore(world.store, step, wait)
            promotion = threading.Thread(target=world.publish, args=("softmax", b"code 2", stepping))

            def begin(promotion: threading.Thread = promotion, stopped: threading.Event = stopped) -> None:
                promotion.start()
                while promotion.is_alive() and not stopped.wait(0.001):
                    pass

            with contextlib.suppress(CollectionError):
                clean(world, BeforeFirstBlob(world.store, begin))
            go_on.set()
            promotion.join(60)
            check_served(world, "rms_norm", "softmax")
            if stepping.left >= 0:
                break
        assert 20 < step < 199

    def test_a_promotion_that_dies_when_it_was_seen_while_what_it_needs_is_removed(
        self, orphaned: World, tmp_path: Path
    ) -> None:
        """The collection has looked at a blob; the promotion writes it anew; the collection deletes it; so many steps
        later the promotion is seen, and dies before it could find out. The collection puts back what is needed.
        """
        for steps in range(60):
            world = copied(orphaned, tmp_path / f"{steps}")
            promotion = DyingPromotion(world)
            collector = RacedCollector(world.store, promotion, steps)
            swept = clean(world, collector)
            if collector.left >= 0:
                promotion.finish()
                break
            assert any(item.kind == "blob" for item in swept.spared)
            check_served(world, "rms_norm", "softmax")
        assert 5 < steps < 59, "the collection was over before the promotion was seen"

    def test_a_collection_killed_before_or_after_any_delete(self, orphaned: World, tmp_path: Path) -> None:
        whole = copied(orphaned, tmp_path / "whole")
        count = len(clean(whole).removed)
        for deletes in range(count):
            for landed in (False, True):
                world = copied(orphaned, tmp_path / f"{deletes}-{landed}")
                with pytest.raises(Killed):
                    clean(world, DyingCollector(world.store, deletes + 1, landed))
                check_served(world, "rms_norm")
                for entry in history(world.store, world.keyring, CANARY):
                    for digest in entry.index.tables.values():
                        store.read(world.store, trust.blob_key(digest))
                clean(world)
                assert kept(world) == kept(whole)
        assert count > 7

    def test_two_collections(self, orphaned: World, tmp_path: Path) -> None:
        whole = copied(orphaned, tmp_path / "whole")
        clean(whole)
        for step in range(0, 60, 7):
            world = copied(orphaned, tmp_path / f"{step}")
            clean(world, SteppingStore(world.store, step, lambda world=world: clean(world)))  # type: ignore[misc]
            assert kept(world) == kept(whole)


class BeforeReading(DelegatingStore):
    """Does something just before a key is read."""

    def __init__(self, inner: ObjectStore, key: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.key, self.act = key, act

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        if key == self.key:
            self.act()
        return self.inner.get(key, etag, max_bytes)


class BeforeFirstBlob(DelegatingStore):
    def __init__(self, inner: ObjectStore, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.act, self.done = act, False

    def delete(self, key: str) -> None:
        if key.startswith("blobs/") and not self.done:
            self.done = True
            self.act()
        self.inner.delete(key)


class DyingPromotion(DelegatingStore):
    """A promotion of softmax in a thread of its own: it waits before it is seen, and is killed right after."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.world = world
        self.waiting, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        self.thread.start()
        assert self.waiting.wait(60)

    def finish(self) -> None:
        self.go_on.set()
        self.thread.join(60)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        if key != TIMESTAMP_KEY:
            return self.inner.replace_if(key, content, etag)
        self.waiting.set()
        assert self.go_on.wait(60)
        self.inner.replace_if(key, content, etag)
        raise Killed

    def _run(self) -> None:
        with contextlib.suppress(Killed):
            self.world.publish("softmax", b"code 2", store=self)


class RacedCollector(SteppingStore):
    """Begins a promotion before the first blob is deleted, and lets it be seen `steps` operations after that."""

    def __init__(self, inner: ObjectStore, promotion: DyingPromotion, steps: int) -> None:
        super().__init__(inner, steps, promotion.finish)
        self.promotion, self.begun = promotion, False

    def _step(self) -> None:
        if self.begun:
            super()._step()

    def delete(self, key: str) -> None:
        if not self.begun and key.startswith("blobs/"):
            self.promotion.begin()
            self.inner.delete(key)
            self.begun = True
            return
        super().delete(key)


class DyingCollector(DelegatingStore):
    """Kills its user at the n-th delete, counted from 0, before or after it lands."""

    def __init__(self, inner: ObjectStore, delete: int, landed: bool) -> None:
        super().__init__(inner)
        self.left, self.landed = delete, landed

    def delete(self, key: str) -> None:
        self.left -= 1
        if self.left == -1 and not self.landed:
            raise Killed
        self.inner.delete(key)
        if self.left == -1:
            raise Killed


def test_on_an_s3_store(tmp_path: Path, embedded_store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = embedded_store.credentials
    at = Endpoint("gristmill", uuid.uuid4().hex, embedded_store.endpoint, "us-east-1", key.access_key, key.secret_key)
    world = World(tmp_path, S3Store(at))
    world.publish("rms_norm", b"code 1")
    with pytest.raises(Killed):
        world.publish("softmax", b"code 2", store=BeforeTimestamp(world.store))
    assert clean(world) == Swept((), ())
    later_s = garbage.store_clock_s(world.store) + 2 * DAY_S
    monkeypatch.setattr(garbage, "store_clock_s", lambda object_store: later_s)
    swept = clean(world)
    assert {item.kind for item in swept.removed} == {"blob", "attestation", "index", "metadata"} and not swept.spared
    assert clean(world) == Swept((), ())
    check_served(world, "rms_norm")
    world.publish("softmax", b"code 2")
    check_served(world, "rms_norm", "softmax")


KEYS = st.one_of(
    st.builds(
        lambda v, r: f"tuf/{v}.{r}.json", st.integers(1, 9), st.sampled_from(["root", "snapshot", "canary", "x"])
    ),
    st.sampled_from([trust.blob_key(digit * 64) for digit in "abc"]),
    st.sampled_from([trust.attestation_key(digit * 64, "judge") for digit in "abc"]),
    st.sampled_from([trust.target_key(CANARY.index_path, digit * 64) for digit in "abc"]),
    st.sampled_from([TIMESTAMP_KEY, "spool/x", "probe/1/x", "blobs/x", "reports/x", "watch/f/m/hw.json"]),
    st.sampled_from([report_key(CANARY, digit * 64) for digit in "abc"]),
)


@given(st.dictionaries(KEYS, st.floats(0, 100)), st.sets(KEYS), st.integers(1, 9), st.integers(1, 9))
def test_a_plan_holds_nothing_young_needed_current_or_unknown(
    ages: dict[str, float], needed: set[str], snapshot: int, canary: int
) -> None:
    live = Live("", {"snapshot": snapshot, "canary": canary}, frozenset(), {})
    marked = Marked(live, frozenset(needed) | {f"tuf/{snapshot}.snapshot.json"}, frozenset({"a" * 64}))
    listed = [Listing(key, 1, written_s) for key, written_s in ages.items()]
    plan = plan_collection(listed, marked, 50.0, 20.0)
    planned = {item.found.key for item in plan}
    assert all(ages[key] < 50 and key not in marked.keys for key in planned)
    assert not planned & {
        TIMESTAMP_KEY,
        "spool/x",
        "blobs/x",
        "reports/x",
        "watch/f/m/hw.json",
        trust.attestation_key("a" * 64, "judge"),
    }
    assert not any(".root." in key or ".x." in key for key in planned)
    unneeded = {trust.blob_key("b" * 64), "probe/1/x", trust.target_key(CANARY.index_path, "c" * 64)} - marked.keys
    assert {key for key in unneeded if ages.get(key, 100) < 50} <= planned
    assert plan_collection(reversed(listed), marked, 50.0, 20.0) == plan
    assert all(ages[key] < 20 for key in planned if key.startswith("reports/"))
    silent = {key for key in ages if key.startswith("reports/") and key.endswith(".json") and ages[key] < 20}
    assert silent - marked.keys <= planned
    assert plan_collection(listed, replace(marked, keys=marked.keys | planned), 50.0, 20.0) == tuple(
        item for item in plan if item.kind == "attestation" and item.found.key not in planned
    )
