"""What one machine needs of a key set: all public halves and the first root, and the private halves of its roles."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gristmill import durable_file
from registry.errors import KeyFileError
from registry.genesis import own_root
from registry.keys import Keyring, key_names


def export(keyring: Keyring, names: Collection[str], folder: Path) -> list[Path]:
    """Copies them into a folder, which becomes the `keys/` of the other machine. Encrypted keys stay encrypted.

    Started again after a crash, it finishes. Returns the files of the private halves.

    Raises:
        KeyFileError: a private half is not here, the folder holds other files or can't be written.
        RegistryStateError: no registry was made with these keys yet.
    """
    private = {path.name: path.read_bytes() for name in names for path in _private_files(keyring, name)}
    public = {path.name: path.read_bytes() for name in key_names() if (path := keyring.folder / f"{name}.pub").exists()}
    wanted = {**public, keyring.root_path.name: own_root(keyring), **private}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(folder.iterdir()):
            if wanted.get(path.name) != (path.read_bytes() if path.is_file() else None):
                raise KeyFileError(
                    f"folder {folder}: holds {path.name}, which is none of what would be written; name a new folder"
                )
        folder.chmod(0o700)
        for name, content in wanted.items():
            durable_file.write(folder / name, content, mode=0o600 if name in private else 0o644)
    except OSError as error:
        raise KeyFileError(f"folder {folder}: {error.strerror}; name a folder that this user can write") from error
    return [folder / name for name in private]


def _private_files(keyring: Keyring, name: str) -> list[Path]:
    found = [path for kind in ("pem", "uri") if (path := keyring.folder / f"{name}.{kind}").exists()]
    if not found:
        raise KeyFileError(
            f"key file {keyring.folder / name}.pem is missing: the private half of {name} is elsewhere; export it there"
        )
    return found
