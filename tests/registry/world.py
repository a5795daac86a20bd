"""A small registry with one channel, as tests of both sides need it, and stores that fail on purpose."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.domain import AxisRange, Domain
from gristmill.kernel_table import Artifact, FileRef, KernelTable, TableEntry
from gristmill.pull import Puller
from gristmill.store import MAX_OBJECT_BYTES, Listing, NotModified, ObjectStore, StoredObject
from gristmill.trust import Channel
from registry.approval import PERSON, sign
from registry.keys import Keyring, create_keys
from registry.metadata_reader import TIMESTAMP_KEY
from registry.promotion import Decision
from registry.publication import Published, publish
from registry.repository import Repository

CANARY = Channel("canary", "chat", "llama", "x86_64-test")
STABLE = Channel("stable", "chat", "llama", "x86_64-test")


def ref(path: str, content: bytes) -> FileRef:
    return FileRef(path, records.sha256_hex(content), len(content))


def make_artifact(operator: str, code: bytes, ratio_low: str = "1.5") -> tuple[Artifact, dict[str, bytes]]:
    """A table with one entry, and the files it names."""
    source, evidence = b"// " + code, b'{"verdicts":[]}'
    entry = TableEntry(
        domain=Domain(operator, "float32", (AxisRange("tokens", 1, 8),)),
        candidate=records.sha256_hex(source),
        object=ref("kernel.so", code),
        needs_setup=False,
        sources=(ref("main.cpp", source),),
        ratio="2.0",
        ratio_low=ratio_low,
    )
    table = KernelTable(operator, "float32", CANARY.hardware, (entry,))
    artifact = Artifact(table, {"torch": "2.13.0"}, ref("evidence.json", evidence), "2026-12-01T00:00:00+00:00")
    return artifact, {records.sha256_hex(content): content for content in (code, source, evidence)}


def take(artifact: Artifact, current: Artifact | None) -> Decision:
    return Decision(True, "always")


@functools.cache
def shared_keys() -> Path:
    """One key set for all worlds, because writing it durably takes longer than most tests."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    create_keys(folder)
    return folder


class World:
    """Store, keys and one host's folders below a temporary directory."""

    def __init__(self, folder: Path, store: ObjectStore | None = None, own_keys: bool = False) -> None:
        self.folder = folder
        self.store: ObjectStore = store or DirectoryStore(folder / "store")
        if not own_keys and not (folder / "keys").exists():
            shutil.copytree(shared_keys(), folder / "keys")
        self.keyring: Keyring = create_keys(folder / "keys")

    @property
    def repository(self) -> Repository:
        return Repository(self.store, self.keyring)

    def publish(self, operator: str, code: bytes, store: ObjectStore | None = None) -> Published:
        """Publishes to canary what a person has approved already; nobody counts that write."""
        artifact, files = make_artifact(operator, code)
        sign(self.store, self.keyring, artifact.table.name, records.digest(artifact), PERSON)
        return publish(store or self.store, self.keyring, CANARY, [artifact], files, take)

    def puller(
        self,
        cache: str = "cache",
        channel: Channel = CANARY,
        store: ObjectStore | None = None,
        tables: Callable[[], Collection[str]] | None = None,
    ) -> Puller:
        root = self.repository.initialise()
        return Puller(
            store or self.store,
            root,
            channel.fleet,
            channel.model,
            channel.hardware,
            channel.name,
            self.folder / cache,
            tables,
        )

    def path(self, key: str) -> Path:
        """The file behind a key, for attackers."""
        return self.folder / "store" / key


class Killed(BaseException):
    """The process died here: nothing may catch it."""


class DelegatingStore:
    """Passes everything on, counts, and is where faults are put in."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.reads: list[str] = []

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str, etag: str | None = None, max_bytes: int = MAX_OBJECT_BYTES) -> StoredObject | NotModified:
        self.reads.append(key)
        return self.inner.get(key, etag, max_bytes)

    def put_new(self, key: str, content: bytes) -> str:
        return self.inner.put_new(key, content)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        return self.inner.replace_if(key, content, etag)

    def put(self, key: str, content: bytes) -> str:
        return self.inner.put(key, content)

    def list(self, prefix: str) -> Iterator[str]:
        return self.inner.list(prefix)

    def scan(self, prefix: str) -> Iterator[Listing]:
        return self.inner.scan(prefix)

    def delete(self, key: str) -> None:
        self.inner.delete(key)


def copied(world: World, folder: Path) -> World:
    shutil.copytree(world.folder, folder, symlinks=True)
    return World(folder)


def cut_promotions(base: World, folder: Path) -> Iterator[tuple[int, World]]:
    """Copies of a world: in each a promoter of softmax was killed, before each of its writes in turn."""
    for write in range(100):
        world = copied(base, folder / f"{write}")
        try:
            world.publish("softmax", b"code 2", store=DyingStore(world.store, write))
        except Killed:
            yield write, world
        else:
            return


class DyingStore(DelegatingStore):
    """Kills its user before the n-th write, counted from 0; or after that of the timestamp landed."""

    def __init__(self, inner: ObjectStore, write: int, landed: bool = False) -> None:
        super().__init__(inner)
        self.left, self.landed = write, landed

    def put_new(self, key: str, content: bytes) -> str:
        self._write()
        return self.inner.put_new(key, content)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        self._write()
        new = self.inner.replace_if(key, content, etag)
        if self.landed and key == TIMESTAMP_KEY:
            raise Killed
        return new

    def _write(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


class BeforeTimestamp(DelegatingStore):
    """Kills its user just before hosts would see what it has written."""

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        if key == TIMESTAMP_KEY:
            raise Killed
        return self.inner.replace_if(key, content, etag)


class ForgetfulStore(DelegatingStore):
    """Ignores every condition, as some S3 servers do."""

    def put_new(self, key: str, content: bytes) -> str:
        return self.inner.put(key, content)

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        return self.inner.put(key, content)
