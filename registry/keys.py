"""The key set: who may say what is current (TUF roles) and who may say why it is trusted (attestors).

Keys lie in a folder that no host ever sees. Each has a public half, `NAME.pub`, and one of two private ones: `NAME.pem`
(PKCS#8, readable by its owner only, encrypted or not) or `NAME.uri`, a signer URI of `securesystemslib` for keys that
never leave a key service or a token. A private key is loaded when it is first needed: promoters work without root keys.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill import durable_file, trust
from registry import passphrase
from registry.errors import KeyFileError
from registry.passphrase import Secrets

if TYPE_CHECKING:
    from securesystemslib.signer import Key, Signer

ROOT_THRESHOLD = 2
"""How many of the root keys must sign a new root."""
KEY_NAMES: dict[str, tuple[str, ...]] = {
    "root": ("root-1", "root-2", "root-3"),
    "targets": ("targets",),
    "snapshot": ("snapshot",),
    "timestamp": ("timestamp",),
    "canary": ("canary",),
    "stable": ("stable",),
    "revocation": ("revocation",),
    "judge": ("judge",),
    "approver": ("approver",),
}
"""Role to the names of its keys."""
LATE = ("revocation", "approver")
"""Roles that registries from before them lack."""
OFFLINE = ("root-1", "root-2", "root-3", "targets", "approver")
"""Names of keys that no unattended process needs."""
NEXT = ".next"
"""Ends the file stem of a key that is to replace one, until the registry names it."""
ENCRYPTED = b"BEGIN ENCRYPTED PRIVATE KEY"


@dataclass(frozen=True)
class Keyring:
    """The keys in a folder; see `create_keys` and `load_keys`."""

    folder: Path
    public: dict[str, tuple[Key, ...]] = field(repr=False)
    """Role to public keys; none for a role of `LATE` in a key set from before it."""
    secrets: Secrets = field(default=passphrase.ask, repr=False)
    stems: Mapping[str, str] = field(default_factory=dict)
    """Key name to the stem of its files, where that is another."""

    @property
    def root_path(self) -> Path:
        """The first signed root, made by `registry.repository.initialise`: what a host must be given to trust."""
        return self.folder / "root.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time makes what belongs in the folder."""
        with (self.folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def signers(self, role: str) -> tuple[Signer, ...]:
        """All signers of a role.

        Raises:
            KeyFileError: a private key is missing or unreadable.
            PassphraseError: one is encrypted, and what opens it was not given.
        """
        if not self.public[role]:
            raise KeyFileError(f"keys folder {self.folder}: there is no {role} key; make it with: ./mill keys init")
        return tuple(self._signer(name, key) for name, key in self._named(role))

    def signers_here(self, role: str, without: Collection[str] = ()) -> tuple[Signer, ...]:
        """The signers of a role, but for some names, whose private half is in this folder; errors as `signers`."""
        named = self._named(role)
        return tuple(self._signer(name, key) for name, key in named if self.is_here(name) and name not in without)

    def is_here(self, name: str) -> bool:
        """Whether the private half of a key can be reached from this folder."""
        return any(self._path(name, kind).exists() for kind in ("pem", "uri"))

    def is_unattended(self, role: str) -> bool:
        """Whether a role's keys sign without a person: they are here, and no file is encrypted."""
        return bool(self.public[role]) and all(
            self.is_here(name) and not is_encrypted(self._path(name, "pem")) for name in KEY_NAMES[role]
        )

    def is_open(self, name: str) -> bool:
        """Whether whoever can read this folder can sign with a key: its file is here, and not encrypted."""
        return self._path(name, "pem").exists() and not is_encrypted(self._path(name, "pem"))

    def _named(self, role: str) -> list[tuple[str, Key]]:
        return list(zip(KEY_NAMES[role], self.public[role], strict=True))

    def _path(self, name: str, kind: str) -> Path:
        return self.folder / f"{self.stems.get(name, name)}.{kind}"

    def _signer(self, name: str, public: Key) -> Signer:
        uri = self._path(name, "uri")
        if uri.exists():
            return _signer_at(uri, public, self.secrets)
        return _signer_in(self._path(name, "pem"), public, self.secrets)


def create_keys(folder: Path, new_passphrase: Secrets | None = None, secrets: Secrets = passphrase.ask) -> Keyring:
    """Makes the keys that are missing and returns them all; existing ones are never replaced.

    A key whose public half alone is there was taken elsewhere on purpose, and is not missing. For `./mill keys init`
    and the demo alone: whoever only looks must not become the holder of a registry's root keys.

    Args:
        new_passphrase: says what each new key of `OFFLINE` is encrypted with; None leaves them open, for demos.

    Raises:
        KeyFileError: the folder can't be written, or holds part of a key set that was made elsewhere.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        with Keyring(folder, {}).locked():
            _refuse_a_part(folder)
            for name in key_names():
                if not any((folder / f"{name}.{kind}").exists() for kind in ("pem", "uri", "pub")):
                    opens = new_passphrase(f"passphrase of key {name}") if new_passphrase and name in OFFLINE else ""
                    make_key(folder, name, opens)
                if not (folder / f"{name}.pub").exists() and (folder / f"{name}.pem").exists():
                    _derive_public(folder, name, secrets)
    except OSError as error:
        raise KeyFileError(f"keys folder {folder}: {error.strerror}; keys must be written there") from error
    return load_keys(folder, secrets)


def load_keys(folder: Path, secrets: Secrets = passphrase.ask) -> Keyring:
    """The keys in a folder; private ones are read later.

    Raises:
        KeyFileError: there are none, or a public key is missing or malformed.
    """
    if not any(_was_made(folder, (name,)) for name in key_names()):
        raise KeyFileError(
            f"keys folder {folder}: a key of every role is missing; make a key set: ./mill keys init, or bring what "
            "this machine needs of one: ./mill keys export, where the keys are"
        )
    public = {role: tuple(load_public(folder / f"{name}.pub") for name in names) for role, names in _present(folder)}
    return Keyring(folder, {**dict.fromkeys(KEY_NAMES, ()), **public}, secrets)


def key_names() -> Sequence[str]:
    """All names of keys."""
    return [name for names in KEY_NAMES.values() for name in names]


def role_of(name: str) -> str:
    """The role of the key with that name."""
    return next(role for role, names in KEY_NAMES.items() if name in names)


def make_key(folder: Path, stem: str, opens: str = "") -> None:
    """Writes a new ed25519 key: first its private half, from which `create_keys` derives the other after a crash.

    Args:
        opens: passphrase; empty: the file is not encrypted.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    cipher = BestAvailableEncryption(opens.encode()) if opens else NoEncryption()
    private = Ed25519PrivateKey.generate()
    content = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher)
    durable_file.write(folder / f"{stem}.pem", content, mode=0o600)
    durable_file.write(folder / f"{stem}.pub", _public_pem(private))


def use_key(folder: Path, stem: str, uri: str, public: Path) -> None:
    """Takes a key that stays where it is, e.g. `awskms:...`, `hv:...`, `hsm:...`; see `securesystemslib.signer`.

    Args:
        public: its public half: PEM, or JSON as `trust.key_text` writes it.

    Raises:
        KeyFileError: the scheme is unknown, or the public half is malformed.
    """
    from securesystemslib.signer import SIGNER_FOR_URI_SCHEME

    scheme = uri.partition(":")[0]
    if scheme not in SIGNER_FOR_URI_SCHEME or ":" not in uri:
        known = ", ".join(f"{name}:" for name in sorted(SIGNER_FOR_URI_SCHEME))
        raise KeyFileError(f"signer {uri[:80]!r}: its scheme is not known, expected one of {known}")
    load_public(public)
    durable_file.write(folder / f"{stem}.uri", uri.encode(), mode=0o600)
    durable_file.write(folder / f"{stem}.pub", public.read_bytes())


def load_public(path: Path) -> Key:
    """A public key in PEM form, or in JSON.

    Raises:
        KeyFileError: it is missing or malformed.
    """
    try:
        content = path.read_text().strip()
        return trust.public_key(content) if content.startswith("{") else _from_pem(content)
    except FileNotFoundError:
        raise KeyFileError(
            f"key file {path} is missing; bring it here: the public halves of all keys belong beside each private one, "
            "as ./mill keys export puts them"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeyFileError(f"key file {path}: {error}; expected a public key in PEM form") from error


def is_encrypted(path: Path) -> bool:
    """Whether a private key needs a passphrase; False also where there is none."""
    try:
        return ENCRYPTED in path.read_bytes()
    except OSError:
        return False


def _present(folder: Path) -> Collection[tuple[str, tuple[str, ...]]]:
    """All roles, but for those of `LATE` that were never made."""
    return [(role, names) for role, names in KEY_NAMES.items() if role not in LATE or _was_made(folder, names)]


def _was_made(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / f"{name}.{kind}").exists() for name in names for kind in ("pem", "uri", "pub"))


def _refuse_a_part(folder: Path) -> None:
    """What was copied here of another key set must not be filled up with new keys: nobody could tell them apart.

    A crash of `create_keys` leaves at most one private half without its public one, and all keys before it.
    """
    required = [name for role, names in KEY_NAMES.items() if role not in LATE for name in names]
    missing = [name for name in required if not _was_made(folder, (name,))]
    if not missing:
        return
    bare = [name for name in required if (folder / f"{name}.pem").exists() and not (folder / f"{name}.pub").exists()]
    copied = [name for name in bare if required.index(name) > required.index(missing[0])]
    if copied or (folder / "root.json").exists():
        what = f"{copied[0]}.pem has come without its public half" if copied else "root.json is there already"
        raise KeyFileError(
            f"keys folder {folder}: {what}, and {missing[0]} is missing, so it is part of a key set that was made "
            "elsewhere; bring the rest of it (./mill keys export there), or name an empty MILL_HOME for a new set"
        )


def _derive_public(folder: Path, name: str, secrets: Secrets) -> None:
    """After a crash between the two files, from the private one that is there."""
    private = _private(folder / f"{name}.pem", secrets)
    durable_file.write(folder / f"{name}.pub", _public_pem(private))


def _private(path: Path, secrets: Secrets) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = path.read_bytes()
    opens = secrets(f"passphrase of key {path.stem}").encode() if ENCRYPTED in content else None
    try:
        return load_pem_private_key(content, opens)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        wrong = (
            "the passphrase does not open it" if opens is not None else f"{error}; expected a private key in PEM form"
        )
        raise KeyFileError(f"key file {path}: {wrong}") from error


def _public_pem(private: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    content: bytes = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return content


def _from_pem(content: str) -> Key:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        return SSlibKey.from_crypto(load_pem_public_key(content.encode()))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error


def _signer_in(path: Path, public: Key, secrets: Secrets) -> Signer:
    from securesystemslib.exceptions import KeyMismatchError
    from securesystemslib.signer import CryptoSigner, SSlibKey

    try:
        if path.stat().st_mode & 0o077:
            raise KeyFileError(f"key file {path} can be read by others; run: chmod 600 {path}")
        if not isinstance(public, SSlibKey):
            raise ValueError("its public half is of a kind that only a signer URI can use")
        return CryptoSigner(_private(path, secrets), public)
    except FileNotFoundError:
        raise KeyFileError(f"key file {path} is missing; this step needs it, bring it here for as long") from None
    except (OSError, ValueError, KeyMismatchError) as error:
        raise KeyFileError(f"key file {path}: {error}; expected the private half of {path.stem}.pub") from error


def _signer_at(path: Path, public: Key, secrets: Secrets) -> Signer:
    from registry.service_signer import ServiceSigner

    return ServiceSigner(path.read_text().strip(), public, str(path), secrets)
