"""JSON that is read element by element: the entries of one array in a document of any length.

Documents may follow one another, as in files with one a line. What is not asked for is skipped, also piece by piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from gristmill.errors import TraceError

MAX_VALUE_CHARACTERS = 16 << 20
"""Of one element."""
_SOLID = re.compile(r"[^ \t\n\r]")
_NUMBER = "0123456789+-.eE"


def elements(
    chunks: Iterator[str], name: str, key: str, other: Callable[[str, Any], None] | None = None
) -> Iterator[Any]:
    """The elements of the array under `key` of each document; a document that is an array itself counts as that array.

    Args:
        name: of the file, for messages.
        other: is told the scalars beside it, by their keys, when they are met.

    Raises:
        TraceError: not JSON, neither objects nor arrays, or an element beyond `MAX_VALUE_CHARACTERS`.
    """
    text = _Text(chunks, name)
    while (first := text.peek()) != "":
        if first == "[":
            yield from _array(text)
        elif first == "{":
            yield from _document(text, key, other)
        else:
            text.refuse("an object or an array")


def _document(text: _Text, key: str, other: Callable[[str, Any], None] | None) -> Iterator[Any]:
    for found in _keys(text):
        first = text.peek()
        if found == key and first == "[":
            yield from _array(text)
        elif found == key:
            text.refuse(f"an array under {key!r}")
        elif first in "[{":
            _skip(text)
        else:
            value = text.value()
            if other is not None:
                other(found, value)


def _keys(text: _Text) -> Iterator[str]:
    """The keys of an object; whoever asks for the next has read the value of the last."""
    text.expect("{")
    if text.peek() == "}":
        text.expect("}")
        return
    while True:
        if text.peek() != '"':
            text.refuse("a key")
        key = text.value()
        text.expect(":")
        yield key
        if text.peek() == "}":
            text.expect("}")
            return
        text.expect(",")


def _array(text: _Text) -> Iterator[Any]:
    for _ in _places(text):
        yield text.value()


def _places(text: _Text) -> Iterator[None]:
    """One per element of an array; whoever asks for the next has read it."""
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
        return
    while True:
        yield
        if text.peek() == "]":
            text.expect("]")
            return
        text.expect(",")


def _skip(text: _Text) -> None:
    """An array or object, whose elements are read one by one."""
    for _ in _places(text) if text.peek() == "[" else _keys(text):
        text.value()


class _Text:
    """What has been read and not yet used of a text."""

    def __init__(self, chunks: Iterator[str], name: str) -> None:
        self._chunks = chunks
        self._name = name
        self._text = ""
        self._at = 0
        self._before = 0
        """Characters that are gone."""
        self._over = False
        self._decoder = json.JSONDecoder(parse_constant=_constant)

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            found = _SOLID.search(self._text, self._at)
            if found:
                self._at = found.start()
                return found.group()
            self._at = len(self._text)
            if not self._more():
                return ""

    def expect(self, character: str) -> None:
        if self.peek() != character:
            self.refuse(repr(character))
        self._at += 1

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                    self.refuse(f"JSON with elements of at most {MAX_VALUE_CHARACTERS} characters ({error})")
                if not self._more():
                    self.refuse(f"JSON ({error})")
                continue
            cut = isinstance(value, int | float) and not self._text[end : end + 32].strip(_NUMBER)
            if cut and self._more():
                continue  # the number may go on
            self._at = end
            return value

    def refuse(self, expected: str) -> NoReturn:
        found = self._text[self._at : self._at + 40]
        raise TraceError(
            f"trace {self._name}: character {self._before + self._at}: found {found!r}, expected {expected}"
        )

    def _more(self) -> bool:
        """Whether there was any."""
        if self._over:
            return False
        for chunk in self._chunks:
            if chunk:
                self._before += self._at
                self._text, self._at = self._text[self._at :] + chunk, 0
                return True
        self._over = True
        return False


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
