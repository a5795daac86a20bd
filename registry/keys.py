"""The key set: who may say what is current (TUF roles) and who may say why it is trusted (attestors).

Keys are ed25519, one PEM file each, readable by their owner only, in a folder that no host ever sees. Their public
halves lie beside them. A private key is loaded when it is first needed: a promoter works without the root keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill import durable_file
from registry.errors import KeyFileError

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
    "judge": ("judge",),
}
"""Role to the names of its keys."""


@dataclass(frozen=True)
class Keyring:
    """The keys in a folder; see `create_keys` and `load_keys`."""

    folder: Path
    public: dict[str, tuple[Key, ...]] = field(repr=False)
    """Role to public keys."""

    @property
    def root_path(self) -> Path:
        """Signed root metadata, made by `registry.repository.initialise`: what a host must be given to trust."""
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
        """
        return tuple(
            _load_signer(self.folder / f"{name}.pem", key)
            for name, key in zip(KEY_NAMES[role], self.public[role], strict=True)
        )


def create_keys(folder: Path) -> Keyring:
    """Makes the keys that are missing and returns them all; existing ones are never replaced.

    A key whose public half alone is there was taken elsewhere on purpose, and is not missing.

    Raises:
        KeyFileError: the folder can't be written.
    """
    from securesystemslib.signer import CryptoSigner

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        with Keyring(folder, {}).locked():
            for name in _all_names():
                private = folder / f"{name}.pem"
                if not private.exists() and not (folder / f"{name}.pub").exists():
                    durable_file.write(private, CryptoSigner.generate_ed25519().private_bytes, mode=0o600)
                if private.exists():
                    _write_public(folder, name)
    except OSError as error:
        raise KeyFileError(f"keys folder {folder}: {error.strerror}; name a folder that this user can write") from error
    return load_keys(folder)


def load_keys(folder: Path) -> Keyring:
    """The keys in a folder; private ones are read later.

    Raises:
        KeyFileError: a public key is missing or malformed.
    """
    return Keyring(
        folder, {role: tuple(_load_public(folder, name) for name in names) for role, names in KEY_NAMES.items()}
    )


def _all_names() -> Sequence[str]:
    return [name for names in KEY_NAMES.values() for name in names]


def _write_public(folder: Path, name: str) -> None:
    """Derives the public half; after a crash between the two files, from the private one that is there."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    path = folder / f"{name}.pub"
    if path.exists():
        return
    private = load_pem_private_key((folder / f"{name}.pem").read_bytes(), password=None)
    durable_file.write(path, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _load_public(folder: Path, name: str) -> Key:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    path = folder / f"{name}.pub"
    try:
        public = load_pem_public_key(path.read_bytes())
    except FileNotFoundError:
        raise KeyFileError(f"key file {path} is missing; restore it, or create a new key set elsewhere") from None
    except (OSError, ValueError) as error:
        raise KeyFileError(f"key file {path}: {error}; expected a public key in PEM form") from error
    if not isinstance(public, Ed25519PublicKey):
        raise KeyFileError(f"key file {path}: expected an ed25519 key")
    return SSlibKey.from_crypto(public)


def _load_signer(path: Path, public: Key) -> Signer:
    from securesystemslib.signer import CryptoSigner

    try:
        if path.stat().st_mode & 0o077:
            raise KeyFileError(f"key file {path} can be read by others; run: chmod 600 {path}")
        return CryptoSigner.from_priv_key_uri(f"file2:{os.fspath(path.absolute())}", public)
    except FileNotFoundError:
        raise KeyFileError(f"key file {path} is missing; this step needs it, bring it here for as long") from None
    except (OSError, ValueError) as error:
        raise KeyFileError(f"key file {path}: {error}; expected the private half of {path.stem}.pub") from error
