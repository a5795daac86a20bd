"""An attacker who controls the store and holds the stolen keys of some roles, and the host that has to withstand.

Whatever the attacker has no key for is signed with one of his own, so that only trust can tell.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, Signer
from tuf.api.metadata import Metadata, MetaFile, Root, TargetFile, Targets

from gristmill import errors, records, store, trust
from gristmill.generation import Generation
from gristmill.pull import TIMESTAMP_KEY, Puller
from gristmill.store import ObjectStore
from gristmill.trust import Channel, Index
from tests.registry.world import CANARY, World


@functools.cache
def stranger(name: str = "") -> CryptoSigner:
    """A key that the registry never heard of; the same one for the same name."""
    return CryptoSigner.generate_ed25519()


def codes(generation: Generation | None) -> list[bytes]:
    assert generation is not None
    return sorted(path.read_bytes() for path in generation.objects.values())


def metadata_key(role: str, version: int) -> str:
    return TIMESTAMP_KEY if role == "timestamp" else f"tuf/{version}.{role}.json"


@dataclass
class Victim:
    """A host that served `code 1`, then `code 1` and `code 2`, when the attack begins."""

    world: World
    puller: Puller
    old_timestamp: bytes
    """What was current when it served the first of them."""

    def fresh(
        self, channel: Channel = CANARY, cache: Path | None = None, object_store: ObjectStore | None = None
    ) -> Puller:
        """The same host after a restart; or another one."""
        return Puller(
            object_store or self.world.store,
            self.puller._root,
            channel.fleet,
            channel.model,
            channel.hardware,
            channel.name,
            cache or self.puller.cache.folder,
        )

    def refuses(
        self, kind: type[errors.GristmillError], *says: str, puller: Puller | None = None, keeps: bool = True
    ) -> None:
        """The poll fails twice in one line that says these words, and a restart serves what was served before.

        Args:
            keeps: False if that is no longer trusted either: a restart then refuses it in the same way.
        """
        puller = puller or self.puller
        before = self.fresh(puller.channel, puller.cache.folder).last_good()
        for _ in range(2):
            check_refusal(puller.poll, kind, *says)
        after = self.fresh(puller.channel, puller.cache.folder)
        if keeps:
            assert after.last_good() == before
        else:
            check_refusal(after.last_good, kind)

    def follows(self, *expected: bytes) -> None:
        """The next poll takes a generation of exactly this code, and a restart serves it."""
        assert codes(self.puller.poll()) == sorted(expected)
        assert codes(self.fresh().last_good()) == sorted(expected)


def check_refusal(act: Callable[[], object], kind: type[errors.GristmillError], *says: str) -> None:
    """It raises exactly this, in one line that says these words."""
    with pytest.raises(kind) as raised:
        act()
    message = str(raised.value)
    assert type(raised.value) is kind, message
    assert "\n" not in message
    assert [word for word in says if word not in message] == [], message


class Attacker:
    """Rewrites what is current. Starts from the metadata that the store holds now."""

    def __init__(self, world: World, *stolen: str) -> None:
        self.world = world
        self.keys: dict[str, Sequence[Signer]] = {role: world.keyring.signers(role) for role in stolen}
        self.metadata: dict[str, Metadata[Any]] = {}
        self.reload()

    def reload(self) -> None:
        """Forgets what was not published."""
        timestamp = self._load(TIMESTAMP_KEY)
        snapshot = self._load(metadata_key("snapshot", timestamp.signed.snapshot_meta.version))
        self.metadata = {"timestamp": timestamp, "snapshot": snapshot}
        for name, meta in snapshot.signed.meta.items():
            role = name.removesuffix(".json")
            self.metadata[role] = self._load(metadata_key(role, meta.version))

    def signed(self, role: str) -> Any:
        return self.metadata[role].signed

    def put(self, key: str, content: bytes) -> None:
        self.world.store.put(key, content)

    def sign(self, role: str, bump: bool = True) -> bytes:
        """Signs a role with what keys there are, puts it in the store, and returns it."""
        metadata = self.metadata[role]
        metadata.signed.version += bump
        content = signed_by(metadata, self.keys.get(role, (stranger(),)))
        self.put(metadata_key(role, metadata.signed.version), content)
        return content

    def publish(self, *roles: str, bump: bool = True) -> None:
        """Signs these, then a snapshot and a timestamp that lead to them."""
        for role in roles:
            content = self.sign(role, bump)
            self.signed("snapshot").meta[f"{role}.json"] = MetaFile.from_data(
                self.signed(role).version, content, ["sha256"]
            )
        self.publish_snapshot()

    def publish_snapshot(self, bump: bool = True) -> None:
        content = self.sign("snapshot", bump)
        self.signed("timestamp").snapshot_meta = MetaFile.from_data(
            self.signed("snapshot").version, content, ["sha256"]
        )
        self.sign("timestamp")

    def index(self, channel: Channel = CANARY) -> Index:
        """The channel's index now."""
        target = self.signed(channel.name).targets[channel.index_path]
        content = store.read(self.world.store, trust.target_key(channel.index_path, target.hashes["sha256"]))
        return records.parse(Index, content)

    def list_index(self, index: Index, channel: Channel = CANARY, role: str = "") -> None:
        """Puts an index in the store and names it in the channel's role, unsigned as yet."""
        content = records.canonical_json(index)
        self.put(trust.target_key(channel.index_path, records.sha256_hex(content)), content)
        signed: Targets = self.signed(role or channel.name)
        signed.targets[channel.index_path] = TargetFile.from_data(channel.index_path, content, ["sha256"])

    def promote(self, tables: Mapping[str, str], channel: Channel = CANARY, **changes: Any) -> None:
        """What a promoter does, with these tables; `changes` are to the index's fields."""
        base = self.index() if channel.index_path not in self.signed(channel.name).targets else self.index(channel)
        number = self.signed(channel.name).version + 1
        index = replace(base, channel=channel.name, number=number, tables=dict(tables), previous=None, restores=None)
        self.list_index(replace(index, **changes), channel)
        self.publish(channel.name)

    def root(self, version: int = 1) -> Metadata[Root]:
        return Metadata[Root].from_bytes(store.read(self.world.store, f"tuf/{version}.root.json"))

    def rotate(
        self,
        change: Callable[[Root], None],
        signers: Iterable[Signer],
        base: Metadata[Root] | None = None,
        version: int | None = None,
    ) -> Metadata[Root]:
        """Puts the next root in the store, signed by these keys."""
        root = base or self.root()
        root.signed.version = version or root.signed.version + 1
        change(root.signed)
        self.put(metadata_key("root", root.signed.version), signed_by(root, signers))
        return root

    def _load(self, key: str) -> Metadata[Any]:
        return Metadata.from_bytes(store.read(self.world.store, key))


def signed_by(metadata: Metadata[Any], signers: Iterable[Signer]) -> bytes:
    metadata.signatures.clear()
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes()


def replace_keys(root: Root, role: str, *signers: Signer, threshold: int = 1) -> None:
    """Makes these the only keys of a role."""
    for keyid in list(root.roles[role].keyids):
        root.revoke_key(keyid, role)
    for signer in signers:
        root.add_key(signer.public_key, role)
    root.roles[role].threshold = threshold


def attest(payload: bytes, signer: Signer, payload_type: str = trust.PAYLOAD_TYPE) -> bytes:
    """A DSSE envelope."""
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(signer)
    return json.dumps(envelope.to_dict()).encode()
