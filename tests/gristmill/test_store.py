"""One contract for all object stores, and what each says when it can't do its work."""

from __future__ import annotations

import errno
import http.client
import http.server
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import directory_store, errors, s3_store
from gristmill.directory_store import DirectoryStore
from gristmill.s3_store import Endpoint, S3Store
from gristmill.store import NotModified, ObjectStore, StoredObject, checked_key, open_store, read
from registry.embedded_store import EmbeddedStore

RACERS = 6


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    S3Store(Endpoint("registry", "", url, "us-east-1", "any", "any")).create_bucket()
    yield url
    server.stop()


def seaweed_at(embedded: EmbeddedStore, url: str | None = None) -> S3Store:
    key = embedded.credentials
    endpoint = url or embedded.endpoint
    return S3Store(Endpoint("gristmill", uuid.uuid4().hex, endpoint, "us-east-1", key.access_key, key.secret_key))


@pytest.fixture(params=["directory", "moto", "seaweedfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        (tmp_path / "store").mkdir()
        return DirectoryStore(tmp_path / "store")
    if request.param == "moto":
        url = request.getfixturevalue("moto_endpoint")
        return S3Store(Endpoint("registry", uuid.uuid4().hex, url, "us-east-1", "any", "any"))
    return seaweed_at(request.getfixturevalue("embedded_store"))


class TestContract:
    def test_reads_what_was_written(self, store: ObjectStore) -> None:
        etag = store.put_new("a/b", b"content")
        assert store.get("a/b") == StoredObject(b"content", etag)
        assert store.get("a/b", etag) == NotModified(etag)

    def test_a_changed_object_is_sent_again(self, store: ObjectStore) -> None:
        old = store.put_new("a", b"1")
        new = store.replace_if("a", b"2", old)
        assert store.get("a", old) == StoredObject(b"2", new)

    def test_missing(self, store: ObjectStore) -> None:
        with pytest.raises(errors.ObjectNotFoundError, match="no object nowhere/x"):
            store.get("nowhere/x")

    def test_no_more_than_allowed_is_read(self, store: ObjectStore) -> None:
        store.put("long", b"x" * 1000)
        with pytest.raises(errors.ObjectTooLargeError, match="999"):
            store.get("long", max_bytes=999)
        assert read(store, "long", 1000) == b"x" * 1000

    def test_put_new_never_replaces(self, store: ObjectStore) -> None:
        etag = store.put_new("k", b"first")
        with pytest.raises(errors.ObjectExistsError):
            store.put_new("k", b"second")
        assert store.get("k") == StoredObject(b"first", etag)

    def test_put_new_of_the_same_bytes_is_done(self, store: ObjectStore) -> None:
        assert store.put_new("k", b"same") == store.put_new("k", b"same")

    def test_replace_if_needs_the_current_object(self, store: ObjectStore) -> None:
        old = store.put_new("k", b"1")
        store.replace_if("k", b"2", old)
        with pytest.raises(errors.PreconditionFailedError):
            store.replace_if("k", b"3", old)
        assert read(store, "k") == b"2"

    def test_replace_if_makes_nothing(self, store: ObjectStore) -> None:
        etag = store.put_new("k", b"1")
        with pytest.raises(errors.PreconditionFailedError):
            store.replace_if("missing", b"1", etag)
        with pytest.raises(errors.ObjectNotFoundError):
            store.get("missing")

    def test_put_replaces(self, store: ObjectStore) -> None:
        store.put("k", b"1")
        store.put("k", b"2")
        assert read(store, "k") == b"2"

    def test_list_in_order_by_prefix(self, store: ObjectStore) -> None:
        for key in ("p/b", "p/a/c", "p/ab", "q"):
            store.put(key, b"")
        assert list(store.list("p/a")) == ["p/a/c", "p/ab"]
        assert list(store.list("p/")) == ["p/a/c", "p/ab", "p/b"]
        assert list(store.list("none/")) == []
        assert sorted(store.list("")) == ["p/a/c", "p/ab", "p/b", "q"]

    def test_scan_tells_size_and_time(self, store: ObjectStore) -> None:
        for key, content in (("p/a", b"123"), ("p/b/c", b""), ("q", b"1")):
            store.put(key, content)
        found = list(store.scan("p/"))
        assert [(one.key, one.size_bytes) for one in found] == [("p/a", 3), ("p/b/c", 0)]
        assert all(abs(one.modified_s - time.time()) < 600 for one in found)
        assert [one.key for one in store.scan("p/b/c")] == ["p/b/c"]
        assert list(store.scan("none/")) == []

    def test_putting_the_same_bytes_again_makes_an_old_object_young(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that what is about to be referred to is not taken for forgotten."""
        store.put_new("k", b"same")
        (before,) = store.scan("k")
        time.sleep(1.1)  # stores tell seconds
        store.put_new("k", b"same")
        assert list(store.scan("k")) == [before], "it is young enough"
        for module in (directory_store, s3_store):
            monkeypatch.setattr(module, "RENEWED_AFTER_S", 0.5)
        store.put_new("k", b"same")
        (after,) = store.scan("k")
        assert after.modified_s > before.modified_s
        with pytest.raises(errors.ObjectExistsError):
            store.put_new("k", b"other")
        assert read(store, "k") == b"same"

    def test_delete_twice(self, store: ObjectStore) -> None:
        store.put("k", b"1")
        store.delete("k")
        store.delete("k")
        with pytest.raises(errors.ObjectNotFoundError):
            store.get("k")

    def test_no_key_leaves_the_store(self, store: ObjectStore) -> None:
        for key in ("../x", "/x", "a//b", "", "a/../b", ".", "a/..", "a b", "a\0b", "ä", "a/"):
            with pytest.raises(errors.StoreAddressError):
                store.get(key)
            with pytest.raises(errors.StoreAddressError):
                store.put_new(key, b"")
            with pytest.raises(errors.StoreAddressError):
                store.put(key, b"")
            with pytest.raises(errors.StoreAddressError):
                store.replace_if(key, b"", "x")
            with pytest.raises(errors.StoreAddressError):
                store.delete(key)

    def test_one_of_many_concurrent_puts_wins(self, store: ObjectStore) -> None:
        start = threading.Barrier(RACERS)

        def put(racer: int) -> int | None:
            start.wait()
            try:
                store.put_new("race", f"{racer}".encode())
            except errors.ObjectExistsError:
                return None
            return racer

        with ThreadPoolExecutor(RACERS) as pool:
            winners = [racer for racer in pool.map(put, range(RACERS)) if racer is not None]
        assert len(winners) == 1
        assert read(store, "race") == f"{winners[0]}".encode()

    def test_no_update_is_lost(self, store: ObjectStore) -> None:
        store.put_new("n", b"0")

        def increment(racer: int) -> None:
            for turn in range(3):
                while True:
                    found = store.get("n")
                    assert isinstance(found, StoredObject)
                    new = int(found.content.split()[0]) + 1
                    try:
                        store.replace_if("n", f"{new} {racer} {turn}".encode(), found.etag)
                        break
                    except errors.PreconditionFailedError:
                        continue

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(increment, range(4)))
        assert read(store, "n").split()[0] == b"12"


class TestAddresses:
    def test_schemes(self, tmp_path: Path) -> None:
        assert isinstance(open_store(f"file://{tmp_path}", {}), DirectoryStore)
        store = open_store("s3://bucket/a/b?endpoint=http://127.0.0.1:1&region=r", {"AWS_SECRET_ACCESS_KEY": "hidden"})
        assert store.url == "s3://bucket/a/b at http://127.0.0.1:1"
        assert "hidden" not in repr(vars(store))

    def test_endpoint_from_the_environment(self) -> None:
        assert open_store("s3://b", {"AWS_ENDPOINT_URL_S3": "http://h:1"}).url == "s3://b at http://h:1"

    @pytest.mark.parametrize(
        "url",
        ["", "bucket", "http://x", "s3://", "s3://b?endpont=x", "file://host/x", "file://", "s3://b?x", "s3://[b"],
    )
    def test_bad_addresses_say_what_is_expected(self, url: str) -> None:
        with pytest.raises(errors.StoreAddressError, match="expected s3://"):
            open_store(url, {})

    def test_credentials_in_an_address_are_not_repeated(self) -> None:
        with pytest.raises(errors.StoreAddressError) as raised:
            open_store("s3://id:topsecret@bucket", {})
        assert "topsecret" not in str(raised.value)

    @given(st.text(max_size=30))
    def test_keys_stay_below_the_root(self, key: str) -> None:
        try:
            checked_key(key)
        except errors.StoreAddressError:
            return
        assert Path(os.path.normpath(f"/base/{key}")) == Path("/base") / key
        assert f"/base/{key}" == os.path.normpath(f"/base/{key}")


class TestDirectory:
    def test_a_folder_that_is_not_there_yet_is_an_empty_store_which_the_first_write_makes(self, tmp_path: Path) -> None:
        store = DirectoryStore(tmp_path / "new")
        assert list(store.list("")) == []
        with pytest.raises(errors.ObjectNotFoundError, match="new"):
            store.get("a")
        assert list(tmp_path.iterdir()) == [], "looking makes nothing"
        store.put_new("a", b"1")
        assert list(store.list("")) == ["a"]

    def test_without_the_folder_it_would_be_in_the_address_is_wrong_for_all(self, tmp_path: Path) -> None:
        store = DirectoryStore(tmp_path / "none" / "store")
        self.refused(store, f"mkdir -p {tmp_path}/none/store")
        assert list(tmp_path.iterdir()) == []

    def test_a_file_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"1")
        self.refused(DirectoryStore(tmp_path / "file"), "this is no folder")
        assert (tmp_path / "file").read_bytes() == b"1"

    def refused(self, store: DirectoryStore, because: str) -> None:
        actions: list[Callable[[], object]] = [
            lambda: store.get("a"),
            lambda: store.list(""),
            lambda: store.put("a", b"1"),
            lambda: store.put_new("a", b"1"),
            lambda: store.replace_if("a", b"1", "0"),
            lambda: store.delete("a"),
        ]
        for act in actions:
            with pytest.raises(errors.MissingBucketError, match=because):
                act()

    @pytest.mark.parametrize(
        ("number", "kind"), [(errno.ENOSPC, errors.StoreFullError), (errno.EROFS, errors.StoreAccessError)]
    )
    def test_a_full_disk_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[errors.StoreError]
    ) -> None:
        store = DirectoryStore(tmp_path)
        etag = store.put_new("k", b"1")

        def fail(descriptor: int) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            for call in (
                lambda: store.put_new("new", b"2"),
                lambda: store.replace_if("k", b"2", etag),
                lambda: store.put("k", b"2"),
            ):
                with pytest.raises(kind):
                    call()
        assert read(store, "k") == b"1"
        assert list(store.list("")) == ["k"]
        assert {path.name for path in (tmp_path / ".gristmill").iterdir()} <= {"lock"}

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        store = DirectoryStore(tmp_path)
        store.put("a", b"1")
        with pytest.raises(errors.StoreError):
            store.put("a/b", b"1")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestS3Faults:
    def test_unreachable(self) -> None:
        store = S3Store(Endpoint("b", "", f"http://127.0.0.1:{free_port()}", "us-east-1", "k", "s"))
        for call in (lambda: store.get("a"), lambda: store.put_new("a", b""), lambda: list(store.list(""))):
            with pytest.raises(errors.StoreUnreachableError, match="nothing answers there; start the store"):
                call()

    def test_wrong_credentials(self, embedded_store: EmbeddedStore) -> None:
        right = embedded_store.credentials
        for access_key, secret_key in (("nobody", "x"), (right.access_key, "wrong")):
            store = S3Store(Endpoint("gristmill", "", embedded_store.endpoint, "us-east-1", access_key, secret_key))
            for call in (lambda: store.get("a"), lambda: store.put_new("a", b""), lambda: store.put("a", b"")):  # noqa: B023
                with pytest.raises(errors.StoreAccessError, match="check AWS_ACCESS_KEY_ID") as raised:
                    call()
                assert right.secret_key not in str(raised.value)

    def test_missing_bucket(self, moto_endpoint: str) -> None:
        store = S3Store(Endpoint("other", "", moto_endpoint, "us-east-1", "k", "s"))
        for call in (lambda: store.get("a"), lambda: store.put_new("a", b""), lambda: list(store.list(""))):
            with pytest.raises(errors.MissingBucketError, match="no bucket other"):
                call()

    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (501, "NotImplemented", errors.UnconditionalStoreError),
            (507, "InsufficientStorage", errors.StoreFullError),
            (403, "AccessDenied", errors.StoreAccessError),
            (400, "Odd", errors.StoreError),
        ],
    )
    def test_refused_puts(self, status: int, code: str, kind: type[errors.StoreError]) -> None:
        with answering(status, code) as url:
            store = S3Store(Endpoint("b", "", url, "us-east-1", "k", "s"))
            with pytest.raises(kind):
                store.put_new("a", b"1")

    def test_checksums_and_clock(self, embedded_store: EmbeddedStore) -> None:
        store = seaweed_at(embedded_store)
        assert store.refuses_damage("x")
        assert abs(store.clock_skew_s()) < 5
        assert list(store.list("")) == []


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers everything with one S3 error."""

    protocol_version = "HTTP/1.1"
    status: ClassVar[int]
    code: ClassVar[str]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"<Error><Code>{self.code}</Code><Message>m</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *parts: object) -> None:
        pass


class Lossy(http.server.BaseHTTPRequestHandler):
    """A proxy that hangs up after a put has landed, without passing the answer on."""

    protocol_version = "HTTP/1.1"
    upstream: ClassVar[str]
    puts: ClassVar[int]

    def do_GET(self) -> None:
        status, headers, content = self._forward()
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self) -> None:
        type(self).puts += 1
        self._forward()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _forward(self) -> tuple[int, list[tuple[str, str]], bytes]:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self.upstream)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), content

    def log_message(self, *parts: object) -> None:
        pass


class serving:  # noqa: N801
    """Serves a handler class on a free loopback port."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def answering(status: int, code: str) -> serving:
    return serving(type("Fixed", (Answering,), {"status": status, "code": code}))


class TestLostAnswers:
    """A put lands, its answer does not arrive: success must not be taken for a lost race, nor sent again."""

    @pytest.fixture
    def handler(self, embedded_store: EmbeddedStore) -> type[Lossy]:
        upstream = embedded_store.endpoint.removeprefix("http://")
        return type("LossyHere", (Lossy,), {"upstream": upstream, "puts": 0})

    def test_put_new_and_replace_if(self, embedded_store: EmbeddedStore, handler: type[Lossy]) -> None:
        with serving(handler) as url:
            store = seaweed_at(embedded_store, url)
            etag = store.put_new("k", b"1")
            assert store.replace_if("k", b"2", etag) != etag
            assert handler.puts == 2
            assert read(store, "k") == b"2"

    def test_a_lost_race_with_a_lost_answer(self, embedded_store: EmbeddedStore, handler: type[Lossy]) -> None:
        with serving(handler) as url:
            store = seaweed_at(embedded_store, url)
            old = store.put_new("k", b"1")
            store.replace_if("k", b"2", old)
            with pytest.raises(errors.ObjectExistsError):
                store.put_new("k", b"other")
            with pytest.raises(errors.PreconditionFailedError):
                store.replace_if("k", b"3", old)
            assert read(store, "k") == b"2"
