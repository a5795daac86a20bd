"""Strict JSON for frozen dataclasses: the one way that our records cross a process or a file.

A record is a dataclass whose fields are `str`, `int`, `float`, `bool`, enums, other records, `tuple[X, ...]`,
`dict[str, X]`, or `X | None`. Decoding refuses unknown fields, missing fields and wrong types, and names
the place (`entries[2].domain.dtype`); it never guesses. Non-finite floats are refused both ways, because JSON has
none. No dependency: hosts decode these before they trust anything.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from gristmill.errors import MalformedRecordError

R = TypeVar("R")
SHOWN_DIGITS = 12
"""Of a digest. Who takes digests takes so many digits or more, whoever shows them shows so many or all."""


def encode(record: Any) -> Any:
    """The JSON-ready form of a record: dicts, lists and scalars."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: encode(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, enum.Enum):
        return record.value
    if isinstance(record, Mapping):
        return {str(key): encode(value) for key, value in record.items()}
    if isinstance(record, tuple | list):
        return [encode(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        raise MalformedRecordError(f"cannot write {record} as JSON: a finite number was expected")
    if record is None or isinstance(record, str | int | float | bool):
        return record
    raise TypeError(f"{type(record).__name__} is not a record")


def canonical_json(record: Any) -> bytes:
    """The one byte string for a record: sorted keys, no spaces, UTF-8. Digests and signatures are over this."""
    return sorted_json(encode(record)).encode()


def sorted_json(plain: Any) -> str:
    """The same as text, of what is JSON already."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def utc_now() -> str:
    """This moment as records tell it: ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sha256_hex(content: bytes) -> str:
    """The content address used everywhere: lower-case hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def short(digest: str) -> str:
    """A digest as people are shown it: so many digits that every command and setting that takes a digest takes them."""
    return digest[:SHOWN_DIGITS]


def digest(record: Any) -> str:
    """The content address of a record."""
    return sha256_hex(canonical_json(record))


def decode(record_type: type[R], value: Any, where: str = "") -> R:
    """Builds a record from parsed JSON.

    Raises:
        MalformedRecordError: with the place, what was found and what was expected.
    """
    return typing.cast(R, _decode(record_type, value, where or record_type.__name__))


def parse(record_type: type[R], content: bytes | str, where: str = "") -> R:
    """Builds a record from JSON text; errors as `decode`."""
    place = where or record_type.__name__
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedRecordError(f"{place}: not JSON ({error})") from None
    return decode(record_type, value, place)


@functools.cache
def _hints(record_type: type) -> dict[str, Any]:
    return typing.get_type_hints(record_type)


def _refuse(where: str, value: Any, expected: str) -> MalformedRecordError:
    found = repr(value)
    return MalformedRecordError(f"{where}: found {found[:80]}, expected {expected}")


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_optional(hint, value, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(hint), value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise _refuse(where, value, "an object")
        inner = typing.get_args(hint)[1]
        if inner in (str, int, bool) and all(type(item) is inner for item in value.values()):
            return dict(value)  # an index of ten thousand kernels is nothing else
        return {key: _decode(inner, item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _decode_record(typing.cast(type, hint), value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise _refuse(where, value, "one of " + ", ".join(str(m.value) for m in hint)) from None
    return _decode_scalar(hint, value, where)


def _decode_optional(hint: Any, value: Any, where: str) -> Any:
    inner = [option for option in typing.get_args(hint) if option is not type(None)]
    if value is None:
        return None
    if len(inner) != 1:
        raise TypeError(f"{where}: records allow X | None only, not {hint}")
    return _decode(inner[0], value, where)


def _decode_tuple(items: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _refuse(where, value, "a list")
    if len(items) == 2 and items[1] is Ellipsis:
        if items[0] in (str, int, bool) and all(type(item) is items[0] for item in value):
            return tuple(value)
        return tuple(_decode(items[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(items) != len(value):
        raise _refuse(where, value, f"a list of {len(items)}")
    return tuple(_decode(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(items, value, strict=True)))


def _decode_record(record_type: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _refuse(where, value, f"an object ({record_type.__name__})")
    fields = {f.name: f for f in dataclasses.fields(record_type)}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise MalformedRecordError(f"{where}: unknown field {unknown[0]!r}, expected {', '.join(fields)}")
    hints = _hints(record_type)
    given: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            given[name] = _decode(hints[name], value[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MalformedRecordError(f"{where}: field {name!r} is missing")
    return record_type(**given)


def _decode_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise _refuse(where, value, "a finite number")
        return float(value)
    if hint in (str, int, bool) and type(value) is hint:
        return value
    if hint in (str, int, bool, float):
        raise _refuse(
            where, value, {str: "a string", int: "an integer", bool: "true or false", float: "a number"}[hint]
        )
    raise TypeError(f"{where}: {hint} is not a type that records allow")
