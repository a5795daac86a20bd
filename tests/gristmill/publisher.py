"""A registry with keys of its own that promotes kernels of rms_norm, for processes that follow it."""

from __future__ import annotations

from pathlib import Path

from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.domain import AxisRange, Domain
from gristmill.kernel_table import Artifact, FileRef, KernelTable, TableEntry
from gristmill.trust import Channel
from registry.keys import create_keys
from registry.promotion import Decision
from registry.publication import publish
from registry.repository import Repository


class Publisher:
    """Its store and its trusted root lie in `folder`."""

    def __init__(self, folder: Path, channel: Channel) -> None:
        (folder / "store").mkdir()
        self.channel = channel
        self.store = DirectoryStore(folder / "store")
        self.keyring = create_keys(folder / "keys")
        self.root_file = folder / "root.json"
        self.root_file.write_bytes(Repository(self.store, self.keyring).initialise())

    def promote(self, shared_object: bytes) -> tuple[str, int]:
        """Publishes a float32 rms_norm kernel for 1 to 64 tokens; returns its candidate and the generation."""

        def ref(path: str, content: bytes) -> FileRef:
            return FileRef(path, records.sha256_hex(content), len(content))

        source = b"// source of " + records.sha256_hex(shared_object).encode()
        files = {records.sha256_hex(content): content for content in (shared_object, source, b"{}")}
        entry = TableEntry(
            domain=Domain("rms_norm", "float32", (AxisRange("tokens", 1, 64),)),
            candidate=records.sha256_hex(source),
            object=ref("kernel.so", shared_object),
            needs_setup=False,
            sources=(ref("main.cpp", source),),
            ratio="2.0",
            ratio_low="1.5",
        )
        table = KernelTable("rms_norm", "float32", self.channel.hardware, (entry,))
        artifact = Artifact(table, {"torch": "any"}, ref("evidence.json", b"{}"), "2026-12-01T00:00:00+00:00")
        done = publish(
            self.store, self.keyring, self.channel, [artifact], files, lambda new, old: Decision(True, "test")
        )
        return entry.candidate, done.number
