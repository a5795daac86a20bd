"""What was current once is served for ever: each signed statement ends, and the host sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gristmill import errors, follower, pull, store_reader, transfer
from gristmill.errors import StaleRegistryError, StoreError
from gristmill.store import MAX_OBJECT_BYTES, NotModified, StoredObject
from tests.registry.attacks.attacker import Attacker, Victim, signed_by
from tests.registry.endpoint import Honest, dripping, endpoint
from tests.registry.world import DelegatingStore

Steal = Callable[..., Attacker]
PAST = datetime(2020, 1, 1, tzinfo=UTC)


class TestExpired:
    """The owners' keys sign here what has become of their statements when nobody could renew them."""

    def test_timestamp(self, victim: Victim, steal: Steal) -> None:
        owner = steal("timestamp")
        owner.signed("timestamp").expires = PAST
        owner.sign("timestamp")
        victim.refuses(StaleRegistryError, victim.world.store.url, "timestamp.json is expired", "renew")

    def test_snapshot(self, victim: Victim, steal: Steal) -> None:
        owner = steal("timestamp", "snapshot")
        owner.signed("snapshot").expires = PAST
        owner.publish_snapshot()
        victim.refuses(StaleRegistryError, victim.world.store.url, "snapshot.json is expired", "renew")

    @pytest.mark.parametrize("role", ["targets", "canary"])
    def test_targets_and_delegation(self, victim: Victim, steal: Steal, role: str) -> None:
        owner = steal("timestamp", "snapshot", role)
        owner.signed(role).expires = PAST
        owner.publish(role)
        victim.refuses(StaleRegistryError, victim.world.store.url, role, "expired", "renew")

    def test_delegation_of_another_channel_is_none_of_this_hosts_business(self, victim: Victim, steal: Steal) -> None:
        owner = steal("timestamp", "snapshot", "stable")
        owner.signed("stable").expires = PAST
        owner.publish("stable")
        assert victim.puller.poll() is None

    def test_root(self, victim: Victim, steal: Steal) -> None:
        owner = steal("timestamp", "snapshot")
        owner.rotate(lambda root: setattr(root, "expires", PAST), victim.world.keyring.signers("root"))
        owner.publish_snapshot()
        victim.refuses(StaleRegistryError, victim.world.store.url, "root.json is expired", "renew")

    def test_an_expired_root_is_left_by_a_newer_one(self, victim: Victim, steal: Steal) -> None:
        owner = steal("timestamp", "snapshot", "canary")
        signers = victim.world.keyring.signers("root")
        expired = owner.rotate(lambda root: setattr(root, "expires", PAST), signers)
        owner.rotate(lambda root: setattr(root, "expires", datetime(2100, 1, 1, tzinfo=UTC)), signers, expired)
        tables = owner.index().tables
        owner.promote({"rms_norm.float32": tables["rms_norm.float32"]})
        victim.follows(b"code 1")

    def test_what_the_host_kept_expired_meanwhile(self, victim: Victim, steal: Steal) -> None:
        """A host that was away for long takes what is new: expired files of its own only guard against rollback."""
        owner = steal("timestamp", "snapshot", "canary")
        for role, signers in owner.keys.items():
            kept = owner.metadata[role].from_bytes(owner.metadata[role].to_bytes())
            kept.signed.expires = PAST
            (victim.puller.cache.tuf / f"{role}.json").write_bytes(signed_by(kept, signers))
        tables = owner.index().tables
        owner.promote({"rms_norm.float32": tables["rms_norm.float32"]})
        victim.follows(b"code 1")


class FrozenStore(DelegatingStore):
    """Says that nothing has changed, whatever is asked."""

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        return NotModified(etag or "frozen")


class TestUnchangedForEver:
    """A store that answers 304 needs no key at all."""

    def test_a_running_host_sees_the_expiry(self, victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
        victim.puller.poll()
        assert victim.puller.poll() is None
        later = datetime.now(UTC) + timedelta(days=8)

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return later

        monkeypatch.setattr(follower, "datetime", Clock)
        victim.refuses(StaleRegistryError, victim.world.store.url, "not renewed", "renew the registry")

    def test_a_restarted_host_does_not_believe_it(self, victim: Victim) -> None:
        puller = victim.fresh(object_store=FrozenStore(victim.world.store))
        victim.refuses(StoreError, victim.world.store.url, "unchanged", puller=puller)

    def test_after_an_hour_all_is_asked_for_again(self, victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
        victim.puller.poll()
        victim.puller._store = FrozenStore(victim.world.store)
        assert victim.puller.poll() is None
        now_s = pull.time.monotonic() + pull.FULL_REFRESH_S
        monkeypatch.setattr(pull.time, "monotonic", lambda: now_s)
        victim.refuses(StoreError, victim.world.store.url, "unchanged")

    def test_everything_hidden(self, victim: Victim) -> None:
        """A host that has seen the registry takes an empty store for what it is."""
        for key in list(victim.world.store.list("tuf/")):
            victim.world.store.delete(key)
        victim.refuses(errors.ObjectNotFoundError, victim.world.store.url, "tuf/timestamp.json")

    @pytest.mark.parametrize("role", ["snapshot", "canary"])
    def test_one_file_hidden(self, victim: Victim, steal: Steal, role: str) -> None:
        victim.world.publish("softmax", b"code 3")
        version = steal().signed(role).version
        victim.world.store.delete(f"tuf/{version}.{role}.json")
        victim.refuses(errors.ObjectNotFoundError, victim.world.store.url, f"{version}.{role}.json")


def not_modified(request: BaseHTTPRequestHandler) -> None:
    request.send_response(304)
    request.end_headers()


def endless(request: BaseHTTPRequestHandler) -> None:
    """Announces no length and never stops."""
    request.send_response(200)
    request.send_header("ETag", '"1"')
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    try:
        for _ in range(100_000):
            request.wfile.write(chunk)
    except OSError:
        request.close_connection = True


def cut_off(request: BaseHTTPRequestHandler) -> None:
    """Announces more than it sends."""
    request.send_response(200)
    request.send_header("ETag", '"1"')
    request.send_header("Content-Length", "9000")
    request.end_headers()
    request.wfile.write(b"{}")
    request.close_connection = True


class TestLyingEndpoint:
    """S3 endpoints that break the protocol itself."""

    @pytest.mark.parametrize(
        ("answer", "kind", "says"),
        [
            (not_modified, StoreError, "304"),
            (endless, errors.ObjectTooLargeError, "longer than"),
            (cut_off, errors.StoreUnreachableError, "timestamp.json"),
        ],
    )
    def test_refused(self, victim: Victim, answer: Any, kind: type[errors.GristmillError], says: str) -> None:
        with endpoint(answer) as object_store:
            victim.refuses(kind, object_store.url, says, puller=victim.fresh(object_store=object_store))


class TestSlowRetrieval:
    """Stores that drip: each byte comes long before a socket gives up, and the object never ends."""

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer, "START_S", 0.3)
        monkeypatch.setattr(transfer, "SLOWEST_BYTES_S", 1 << 30)

    @pytest.fixture
    def released(self) -> Iterator[threading.Event]:
        """Set when the test is over, lest the server's threads outlive it."""
        event = threading.Event()
        yield event
        event.set()

    @pytest.mark.parametrize(
        "start",
        [
            b"HTTP/1.1 200 OK\r\nX-Slow: ",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\nETag: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nETag: 1\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nX-Slow: ",
            b"",
        ],
        ids=["headers", "body", "body of no length", "not modified", "nothing but blanks"],
    )
    def test_the_timestamp(self, victim: Victim, released: threading.Event, start: bytes) -> None:
        def answer(request: BaseHTTPRequestHandler) -> None:
            request.wfile.write(start)
            dripping(request, released)

        with endpoint(answer) as object_store:
            puller = victim.fresh(object_store=object_store)
            victim.refuses(errors.StoreUnreachableError, object_store.url, "was not through after", puller=puller)

    @pytest.mark.parametrize("kind", ["tuf/", "targets/", "blobs/", "attestations/"])
    def test_what_it_leads_to(
        self, victim: Victim, released: threading.Event, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """Once the dripping ends, the next poll takes what there is."""
        victim.world.publish("softmax", b"code 3")
        slow = {"on": True}

        def drips(key: str) -> bool:
            return slow["on"] and key.startswith(kind) and key != pull.TIMESTAMP_KEY

        with endpoint(Honest(victim.world.path(""), drip=drips, released=released)) as object_store:
            victim.puller._store = object_store
            victim.refuses(errors.StoreUnreachableError, object_store.url, "was not through after")
            slow["on"] = False
            monkeypatch.undo()
            victim.follows(b"code 1", b"code 3")

    def test_every_object_just_in_time(self, victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then the time of the poll ends, and what was fetched by then need not be fetched again."""
        victim.world.publish("softmax", b"code 3")
        now_s = store_reader.time.monotonic()

        class Slow(DelegatingStore):
            def get(self, key: str, etag: str | None = None, max_bytes: int = 0) -> StoredObject | NotModified:
                nonlocal now_s
                now_s += 0.7 * pull.LONGEST_POLL_S
                return super().get(key, etag, max_bytes)

        victim.puller._store = slow = Slow(victim.world.store)
        with monkeypatch.context() as patch:
            patch.setattr(store_reader.time, "monotonic", lambda: now_s)
            for _ in range(20):
                try:
                    found = victim.puller.poll()
                except errors.StoreUnreachableError as error:
                    assert "the next one goes on" in str(error)
                else:
                    break
        assert found is not None
        blobs = [key for key in slow.reads if key.startswith(("blobs/", "attestations/"))]
        assert len(set(blobs)) == len(blobs) == 3
