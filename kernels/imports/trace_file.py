"""Trace files as they are read: plain or gzip, piece by piece, with how far one has come."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from gristmill.errors import TraceError

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARACTERS = 16 << 20
GZIP_MAGIC = b"\x1f\x8b"

Tell = Callable[[int, int], None]
"""Is told bytes read and bytes in all, of the file as it lies on the disk."""


def silent(read_bytes: int, of_bytes: int) -> None:
    """Tells nobody."""


def chunks(path: Path, tell: Tell = silent) -> Iterator[str]:
    """The text of a file, piece by piece.

    Raises:
        TraceError: it cannot be read, is not UTF-8, or is damaged gzip.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as raw:
            stream = _unpacked(raw)
            while content := stream.read(CHUNK_BYTES):
                tell(raw.tell(), size_bytes)
                yield decoder.decode(content)
            yield decoder.decode(b"", final=True)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path}: cannot be read ({error}); expected UTF-8 text, plain or gzip") from None


def lines(path: Path, tell: Tell = silent) -> Iterator[str]:
    """The lines of a file, without their ends. Errors as `chunks`, and a line without end."""
    rest = ""
    number = 0
    for chunk in chunks(path, tell):
        parts = (rest + chunk).split("\n")
        rest = parts.pop()
        for part in parts:
            number += 1
            yield part.removesuffix("\r")
        if len(rest) > MAX_LINE_CHARACTERS:
            raise TraceError(
                f"trace {path}: row {number + 1} has more than {MAX_LINE_CHARACTERS} characters; this is no such trace"
            )
    if rest:
        yield rest.removesuffix("\r")


def document(path: Path) -> str:
    """The text of a file that is read whole. Errors as `chunks`, and more than `MAX_LINE_CHARACTERS` of it."""
    parts: list[str] = []
    characters = 0
    for chunk in chunks(path):
        parts.append(chunk)
        characters += len(chunk)
        if characters > MAX_LINE_CHARACTERS:
            raise TraceError(f"{path}: has more than {MAX_LINE_CHARACTERS} characters; this is no such file")
    return "".join(parts)


def _unpacked(raw: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    magic = raw.read(len(GZIP_MAGIC))
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if magic == GZIP_MAGIC else raw
