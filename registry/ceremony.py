"""Replacing keys: a new one is made, the metadata that names it is signed and published, hosts follow by themselves.
Renewing signatures with the same keys goes the same way.

Until the registry names a new key it lies beside the old one as `NAME.next`. A ceremony that dies anywhere is finished
by starting it again: nothing is made twice, and hosts keep what they have until all of it is there.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from securesystemslib.signer import Key
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Targets

from gristmill import durable_file, limits, records, trust
from gristmill.errors import ObjectExistsError, PreconditionFailedError
from gristmill.store import ObjectStore
from gristmill.trust import CHANNELS, AttestationPolicy
from registry import genesis, keys
from registry.attestation import unattested
from registry.entry import Edit, channel_of, entry_of, next_index
from registry.errors import CeremonyError, ConflictError, KeyFileError, RegistryStateError
from registry.keys import NEXT, Keyring
from registry.metadata_reader import DELEGATED, MetadataReader, State
from registry.metadata_writer import MetadataWriter, sign, start_lifetime
from registry.repository import MAX_ATTEMPTS
from registry.root_chain import check_succession, read_chain, root_key

TOP_ROLES = ("root", "targets", "snapshot", "timestamp")
_LONGEST_PAUSE_S = 0.5

Make = Callable[[str, str], None]
"""Makes, or takes from elsewhere, the new key with this name in the files with this stem."""


@dataclass(frozen=True)
class Replaced:
    """What a ceremony did."""

    new: dict[str, str]
    """Key name to the id of the key that counts now."""
    former: dict[str, str]
    """Key name to the id of the one before; empty for a key whose files alone remained to be put in place."""
    root_version: int
    dropped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Channel to the tables that it serves no longer, because they were attested by a revoked key alone."""


def rotate(object_store: ObjectStore, keyring: Keyring, names: Collection[str], make: Make) -> Replaced:
    """Puts new keys in the place of good ones. What old attestors have signed goes on counting.

    Raises:
        KeyFileError, PassphraseError: a key that has to sign is not here, or can't be opened.
        CeremonyError: too few root keys are here; another ceremony is not finished; or hosts of stable would be left
            without tables that the approver has not signed yet.
        ConflictError: others were faster, many times.
    """
    return _replace(object_store, keyring, names, make, distrust=False)


def revoke(object_store: ObjectStore, keyring: Keyring, names: Collection[str], make: Make) -> Replaced:
    """Puts new keys in the place of stolen or lost ones, whose signatures are worth nothing from then on.

    The private halves of the revoked keys are not used. Tables that only a revoked attestor vouched for leave their
    channels in the same step; errors as `rotate`.
    """
    return _replace(object_store, keyring, names, make, distrust=True)


def renew(object_store: ObjectStore, keyring: Keyring, roles: Collection[str]) -> None:
    """Signs root, targets or both anew with the same keys, so that they count for another lifetime.

    A crash leaves a root that hosts follow already, or nothing; doing it again is harmless. Errors as `rotate`.
    """
    folder = keyring.folder
    with _one_at_a_time(folder):
        waiting = _waiting(folder)
        if waiting:
            raise CeremonyError(
                f"keys folder {folder}: replacing {waiting[0]} was not finished; run that command again first"
            )
        _Ceremony(object_store, keyring, keyring, (), distrust=False, renewed=roles).publish()


def _replace(
    object_store: ObjectStore, keyring: Keyring, names: Collection[str], make: Make, distrust: bool
) -> Replaced:
    folder = keyring.folder
    if not keyring.root_path.exists():
        raise CeremonyError(f"keys folder {folder}: no registry was made with these keys yet; run: ./mill keys init")
    with _one_at_a_time(folder):
        in_place = _settle(folder)
        before = keys.load_keys(folder, keyring.secrets)
        waiting = [name for name in _waiting(folder) if name not in names]
        if waiting:
            raise CeremonyError(
                f"keys folder {folder}: replacing {waiting[0]} was not finished; run that command again first"
            )
        todo = tuple(name for name in names if name not in in_place)
        to_make = [name for name in todo if not (folder / f"{name}{NEXT}.pub").exists()]
        if to_make:
            _require_signers(before, todo, distrust)
        for name in to_make:
            make(name, name + NEXT)
        ceremony = _Ceremony(object_store, before, _after(before, todo), todo, distrust)
        replaced = ceremony.publish()
        for name in todo:
            _put_in_place(folder, name)
    return replace(replaced, new={**_ids(keys.load_keys(folder), in_place), **replaced.new})


def _require_signers(before: Keyring, names: Collection[str], distrust: bool) -> None:
    """Refuses where the old keys that have to sign are not: a new key that nothing can make count would be waited for,
    and nothing else be replaced in this folder."""
    replaced = {keys.role_of(name) for name in names}
    if replaced & set(TOP_ROLES):
        here = len(before.signers_here("root", names if distrust else ()))
        if here < keys.ROOT_THRESHOLD:
            raise _too_few_roots(before.folder, f"{here} that count")
    signing = {"snapshot", "timestamp", *(() if replaced <= set(TOP_ROLES) else ("targets",))}
    for role in sorted(signing - replaced):
        before.signers(role)


def _too_few_roots(folder: Path, found: str) -> CeremonyError:
    return CeremonyError(
        f"keys folder {folder}: too few root keys are here ({found}); bring the private files of {keys.ROOT_THRESHOLD} "
        "root keys that are not revoked here, for as long as this takes"
    )


class _Ceremony:
    """Signs with the keys as they will be; the keys as they were sign the step between."""

    def __init__(
        self,
        object_store: ObjectStore,
        before: Keyring,
        after: Keyring,
        names: Collection[str],
        distrust: bool,
        renewed: Collection[str] = (),
    ) -> None:
        """
        Args:
            names: of the keys that are replaced.
            renewed: roles of `root` and `targets` that sign anew all the same.
        """
        self._store = object_store
        self._reader = MetadataReader(object_store)
        self._writer = MetadataWriter(object_store, after)
        self._keyring = after
        self._former = before
        self._names = names
        self._distrust = distrust
        self._renewed = renewed

    def publish(self) -> Replaced:
        """Makes the new keys count, by one new root where it names them, and one swap of the timestamp."""
        chain = self._lengthened(read_chain(self._store, genesis.own_root(self._keyring)))
        for _ in range(MAX_ATTEMPTS):
            state = self._current(chain)
            try:
                dropped = self._sign_anew(state)
            except PreconditionFailedError:
                time.sleep(random.uniform(0, _LONGEST_PAUSE_S))
                continue
            former = _ids(self._former, [n for n in self._names if self._former.public[keys.role_of(n)]])
            return Replaced(_ids(self._keyring, self._names), former, chain[-1].version, dropped)
        raise ConflictError(f"{self._store.url}: others published {MAX_ATTEMPTS} times meanwhile; try again later")

    def _lengthened(self, chain: tuple[Root, ...]) -> tuple[Root, ...]:
        """The chain, with a root at its end that names the new keys, or lives longer."""
        root = copy.deepcopy(chain[-1])
        for name in self._names:
            if keys.role_of(name) in TOP_ROLES:
                self._exchange(root, name)
        if root == chain[-1] and "root" not in self._renewed:
            return chain
        root.version += 1
        if root.version >= chain[0].version + limits.MAX_ROOT_ROTATIONS:
            raise CeremonyError(
                f"{self._store.url}: hosts follow at most {limits.MAX_ROOT_ROTATIONS - 1} roots from the one that they "
                "were given, so they would not follow this one; make a new registry, and give hosts its root.json"
            )
        signed = Metadata(root)
        without = self._names if self._distrust else ()
        start_lifetime(signed, "root")
        signers = [*self._former.signers_here("root", without), *self._keyring.signers_here("root")]
        for signer in {signer.public_key.keyid: signer for signer in signers}.values():
            sign(signed, signer)
        try:
            check_succession(chain[-1], signed)
        except RepositoryError as error:
            raise _too_few_roots(self._keyring.folder, str(error)) from error
        try:
            self._store.put_new(root_key(root.version), self._writer.readable(signed, "root"))
        except ObjectExistsError:
            raise ConflictError(f"{self._store.url}: another ceremony was faster; run the same command again") from None
        return (*chain, root)

    def _current(self, chain: tuple[Root, ...]) -> State:
        """What is current, signed as the newest root says or, until this ceremony is done, an older one."""
        for root in reversed(chain[1:]):
            with contextlib.suppress(RegistryStateError):
                return replace(self._reader.read(root), root=chain[-1])
        return replace(self._reader.read(chain[0]), root=chain[-1])

    def _sign_anew(self, state: State) -> dict[str, tuple[str, ...]]:
        """Publishes what is current under the new keys; returns what had to go."""
        was = copy.deepcopy(state.targets.signed)
        roles = {name: self._delegated(state, name) for name in DELEGATED if name in CHANNELS or name in self._names}
        dropped = self._demand(state, roles) if set(self._names) & set(trust.ATTESTORS) else {}
        if state.targets.signed != was or "targets" in {*self._names, *self._renewed}:
            self._writer.put_role(state, state.targets, "targets")
        changed = {path.split("/")[0] for path in dropped}
        for name in sorted(changed | set(self._names) & set(DELEGATED)):
            self._writer.put_role(state, roles[name], name)
        self._writer.publish_snapshot(state)
        return dropped

    def _delegated(self, state: State, name: str) -> Metadata[Targets]:
        """A role's metadata, with its new key delegated to; for the first time where a registry is from before it."""
        targets = state.targets.signed
        if f"{name}.json" not in state.snapshot.signed.meta:
            genesis.delegate(targets, self._keyring, name)
            return Metadata(Targets())
        role = self._reader.role(state, name)
        if name in self._names:
            self._exchange(targets, name)
        return role

    def _exchange(self, by: Root | Targets, name: str) -> None:
        role = keys.role_of(name)
        at = keys.KEY_NAMES[role].index(name)
        old, new = self._former.public[role][at], self._keyring.public[role][at]
        trusted = by.get_delegated_role(role).keyids
        if new.keyid in trusted:
            return
        if old.keyid not in trusted:
            raise CeremonyError(
                f"keys folder {self._keyring.folder}: its {name} key is not the one that {self._store.url} trusts now; "
                "bring the key that replaced it here"
            )
        by.revoke_key(old.keyid, role)
        by.add_key(new, role)

    def _demand(self, state: State, roles: dict[str, Metadata[Targets]]) -> dict[str, tuple[str, ...]]:
        """Writes the policy that names the new attestors, and takes from the channels what it leaves unattested."""
        policy = self._policy_after(self._reader.policy(state))
        self._writer.put_target(state.targets, trust.POLICY_PATH, records.canonical_json(policy))
        dropped: dict[str, tuple[str, ...]] = {}
        for name in CHANNELS:
            for path in sorted(roles[name].signed.targets):
                gone = self._drop(roles[name], path, policy)
                if gone:
                    dropped[path] = gone
        return dropped

    def _policy_after(self, published: AttestationPolicy) -> AttestationPolicy:
        trusted, required = dict(published.keys), dict(published.required)
        for name in set(self._names) & set(trust.ATTESTORS):
            new, former = self._keyring.public[name], self._former.public[name]
            still = () if self._distrust else (*published.keys.get(name, ()), *map(trust.key_text, former))
            trusted[name] = tuple(dict.fromkeys([*map(trust.key_text, new), *still]))
        if trust.APPROVER in trusted:
            required["stable"] = trust.ATTESTORS
        return replace(published, keys=trusted, required=required)

    def _drop(self, role: Metadata[Targets], path: str, policy: AttestationPolicy) -> tuple[str, ...]:
        channel = channel_of(path)
        assert channel is not None, "a channel's role lists nothing but indexes"
        current = self._reader.entry(role, channel)
        assert current is not None, "the path is one of the role's"
        gone = unattested(self._store, policy, channel.name, current.index.tables)
        if not gone:
            return ()
        if not self._distrust:
            name, attestors = next(iter(gone.items()))
            raise CeremonyError(
                f"{channel}: {name} has no attestation by {attestors[0]}, and hosts would refuse it from now on; run "
                f"first: ./mill approve {channel.name}"
            )
        tables = {name: digest for name, digest in current.index.tables.items() if name not in gone}
        edit = Edit(tables, f"revoked: keys of {', '.join(sorted(self._names))}")
        entry = entry_of(next_index(channel, role.signed.version + 1, current, edit))
        self._writer.put_index(role, path, entry)
        return tuple(gone)


def _after(before: Keyring, names: Collection[str]) -> Keyring:
    """The key set once the new keys are in place."""
    public: dict[str, tuple[Key, ...]] = {}
    for role, role_names in keys.KEY_NAMES.items():
        kept = dict(zip(role_names, before.public[role], strict=False))
        new = {n: keys.load_public(before.folder / f"{n}{NEXT}.pub") for n in role_names if n in names}
        public[role] = tuple({**kept, **new}[n] for n in role_names if n in kept or n in new)
    return Keyring(before.folder, public, before.secrets, {name: name + NEXT for name in names})


def _ids(keyring: Keyring, names: Collection[str]) -> dict[str, str]:
    found = {}
    for name in names:
        role = keys.role_of(name)
        found[name] = keyring.public[role][keys.KEY_NAMES[role].index(name)].keyid
    return found


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    try:
        lock = (folder / "ceremony.lock").open("ab")
    except OSError as error:
        raise KeyFileError(f"keys folder {folder}: {error.strerror}; replacing a key writes there") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _waiting(folder: Path) -> list[str]:
    return [name for name in keys.key_names() if (folder / f"{name}{NEXT}.pub").exists()]


def _settle(folder: Path) -> list[str]:
    """Clears up after a crash: forgets keys that were half made, and returns those it has put in place."""
    settled: list[str] = []
    for name in keys.key_names():
        private = [folder / f"{name}{NEXT}.{kind}" for kind in ("pem", "uri")]
        if not (folder / f"{name}{NEXT}.pub").exists():
            for path in private:
                path.unlink(missing_ok=True)
        elif not any(path.exists() for path in private):
            _put_in_place(folder, name)
            settled.append(name)
    return settled


def _put_in_place(folder: Path, name: str) -> None:
    """Replaces the files of a key: its private half first, so that `_settle` knows a step that was cut off."""
    for kind, other in (("pem", "uri"), ("uri", "pem")):
        new = folder / f"{name}{NEXT}.{kind}"
        if new.exists():
            (folder / f"{name}.{other}").unlink(missing_ok=True)
            new.replace(folder / f"{name}.{kind}")
    (folder / f"{name}{NEXT}.pub").replace(folder / f"{name}.pub")
    durable_file.sync_folder(folder)
