"""Passphrases of private keys: from the environment, a file, or whoever sits at the terminal; never from arguments.

Arguments are shown by `ps` and kept by shells; a variable that was read is taken out of this process's environment, so
that nothing it starts inherits it.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path

from registry.errors import PassphraseError

VARIABLE = "MILL_KEYS_PASSPHRASE"
FILE_VARIABLE = "MILL_KEYS_PASSPHRASE_FILE"
SHORTEST = 12
"""Characters of a new passphrase: the file may fall into a thief's hands, who has time."""

Secrets = Callable[[str], str]
"""Says the secret of that name: `securesystemslib`'s `SecretsHandler`."""


def ask(name: str) -> str:
    """The passphrase, or PIN, that opens an existing key.

    Raises:
        PassphraseError: it is given nowhere, and nobody is there to be asked.
    """
    given = _given()
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise PassphraseError(
            f"{name} is needed; set {FILE_VARIABLE} to a file that holds it, or {VARIABLE}, or run this at a terminal"
        )
    return getpass.getpass(f"{name}: ")


def choose(name: str) -> str:
    """A new passphrase; at a terminal it is asked for twice.

    Raises:
        PassphraseError: it is too short, or the two differ; also as `ask`.
    """
    chosen = ask(f"new {name}")
    if len(chosen) < SHORTEST:
        raise PassphraseError(f"new {name}: has {len(chosen)} characters, expected {SHORTEST} or more")
    if _given() is None and getpass.getpass(f"new {name}, again: ") != chosen:
        raise PassphraseError(f"new {name}: the two differ; run the same command again")
    return chosen


class Remembered:
    """Asks for each secret once, and not again for one that was chosen just now."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def ask(self, name: str) -> str:
        """As the function of that name."""
        if name not in self._known:
            self._known[name] = ask(name)
        return self._known[name]

    def choose(self, name: str) -> str:
        """As the function of that name."""
        self._known[name] = choose(name)
        return self._known[name]


_taken: list[str] = []
"""What the environment held, once it was read."""


def _given() -> str | None:
    if VARIABLE in os.environ:
        _taken[:] = [os.environ.pop(VARIABLE)]
    if _taken:
        return _taken[0]
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return None
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise PassphraseError(f"{FILE_VARIABLE} names {path}: {error}; expected a text file with one line") from None
