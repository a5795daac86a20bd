"""Folding a spool into a traffic profile: the Parquet files that hosts flushed, summed up.

Objects are named `spool/<fleet>/<model>/<hardware>/<kind>/<window_start_ns>-<host
hash>-<process>-<sequence>.parquet`, kind `operators`, `requests`, `sequences` or `steps`. Each is read into a `Tally`.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gristmill import records
from gristmill.errors import MalformedRecordError
from gristmill.sequence import NO_STEPS, StepTimes
from gristmill.spool import OPERATOR_COLUMNS, REQUEST_COLUMNS, SEQUENCE_COLUMNS, STEP_COLUMNS
from kernels import sketch
from kernels.errors import SpoolObjectError
from kernels.profile import TrafficProfile
from kernels.sketch import ANSWERS, PROMPTS, Observation
from kernels.tally import Counts, Ends, Pattern, Source, Tally, layouts_of, total

METADATA_PREFIX = "gristmill."
LONGEST_REQUEST_NS = 3600 * 10**9
NAME = re.compile(r"[A-Za-z_][\w+.:-]{0,255}", re.ASCII)
"""Of an operator, a fused one too, and of a dtype."""
MAX_TIME_NS = 1 << 63
"""Of the calls of one row."""
KINDS = {
    "operators": OPERATOR_COLUMNS,
    "requests": REQUEST_COLUMNS,
    "sequences": SEQUENCE_COLUMNS,
    "steps": STEP_COLUMNS,
}
LATER_COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "operators": {"one_in": 0},
    "requests": {"cached_tokens": 0, "drafts": 0, "accepted": "[]", "weight": 1, "dropped": 0},
    "sequences": {},
    "steps": {},
}
"""By kind, what hosts before these columns meant. They timed calls so that none stands for a known number of others."""


class Known(NamedTuple):
    """A pattern, and what a sketch counts it as."""

    pattern: Pattern
    stream: sketch.Stream
    tokens: int


class _FaultError(Exception):
    """What is wrong with a part of a row, before it is said of which."""


def fold(files: Iterable[tuple[str, bytes]]) -> TrafficProfile:
    """The profile of all these spool objects, given as (name, content).

    Raises:
        SpoolObjectError: naming an object that is malformed, or from another fleet, model or hardware than the first.
        EmptyProfileError: if there is no object.
    """
    return total((name, tally(name, content)) for name, content in files).profile()


def tally(name: str, content: bytes) -> Tally:
    """The samples of one spool object.

    Raises:
        SpoolObjectError: if it is not Parquet with the columns and metadata of its kind, or a row makes no sense.
    """
    kind = name.split("/")[-2] if "/" in name else ""
    if kind not in KINDS:
        raise _malformed(name, f"lies in folder {kind!r}, expected {'/, '.join(KINDS)}/")
    metadata, rows = _read(name, content, KINDS[kind], LATER_COLUMNS[kind])
    if not rows:
        raise _malformed(name, "has no row")
    source, versions = _provenance(name, metadata)
    read = {
        "operators": _operator_rows,
        "requests": _request_rows,
        "sequences": _edge_rows,
        "steps": _step_rows,
    }[kind]
    start_ns = min(row["window_start_ns"] for row in rows)
    end_ns = max(row["window_end_ns"] for row in rows)
    if not 0 <= start_ns <= end_ns:
        raise _malformed(name, f"covers {start_ns} to {end_ns} ns, expected a start before the end")
    return Tally(source=source, start_ns=start_ns, end_ns=end_ns, versions=versions, **read(name, rows))


def _read(
    name: str, content: bytes, columns: Mapping[str, str], later: Mapping[str, Any]
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Metadata and rows, after checking that the columns are there, typed and without gaps."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(io.BytesIO(content)) as file:
            table = file.read(use_threads=False)  # an object is small
        table.validate(full=True)
        names = table.column_names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _malformed(name, f"is not a Parquet file ({str(error).splitlines()[0]})") from None
    for column, kind in columns.items():
        if column not in names:
            if column in later:
                continue
            raise _malformed(name, f"has no column {column!r}")
        found = table.schema.field(column).type
        found = found.value_type if pyarrow.types.is_dictionary(found) else found
        fits = pyarrow.types.is_integer(found) if kind == "int64" else pyarrow.types.is_string(found)
        if not fits or table.column(column).null_count:
            raise _malformed(name, f"column {column!r} is {found} (or has gaps), expected {kind}")
    stored = table.schema.metadata or {}
    metadata = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in stored.items()}
    rows = table.select([column for column in columns if column in names]).to_pylist()
    return metadata, [{**later, **row} for row in rows]


def _provenance(name: str, metadata: Mapping[str, str]) -> tuple[Source, frozenset[tuple[str, str]]]:
    facts = {}
    for key in (*Source._fields, "versions"):
        if f"{METADATA_PREFIX}{key}" not in metadata:
            raise _malformed(name, f"has no metadata {METADATA_PREFIX}{key}")
        facts[key] = metadata[f"{METADATA_PREFIX}{key}"]
    versions = _parse_json(name, "versions", facts.pop("versions"))
    if not isinstance(versions, dict) or not records.sorted_json(versions).isascii():
        raise _malformed(name, f"metadata {METADATA_PREFIX}versions is not a JSON object of versions")
    return Source(**facts), frozenset((package, str(version)) for package, version in versions.items())


def _operator_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Dropped calls are a fact of the flush, not of a row: they stand in one of its rows."""
    patterns: dict[Pattern, Counts] = {}
    dropped: dict[tuple[int, str, int], int] = {}
    seen: list[Observation] = []
    for number, row in enumerate(rows):
        calls, timed_calls, timed_ns, one_in = row["calls"], row["timed_calls"], row["timed_ns"], row["one_in"]
        late = one_in and calls  # a device tells times later than the host counts calls
        if min(calls, timed_calls, timed_ns, row["dropped"], one_in) < 0 or (timed_calls > calls and not late):
            raise _malformed(name, f"row {number}: {_told(row)}; expected 0 <= timed_calls <= calls, none negative")
        pattern, stream, tokens = _pattern(name, number, row)
        if one_in:  # the host says how it drew: an unbiased estimate, as if all had been timed
            timed_calls, timed_ns = calls, timed_ns * one_in
        counts = Counts(calls, timed_calls, timed_ns)
        if timed_ns >= MAX_TIME_NS:
            raise _malformed(name, f"row {number}: {_told(row)}; expected less than 292 years of time")
        seen.append((stream, tokens, row["window_start_ns"], calls, counts.time_ns))
        patterns.setdefault(pattern, Counts()).add(counts)
        flush = (row["window_start_ns"], row["host"], row["process"])
        dropped[flush] = max(dropped.get(flush, 0), row["dropped"])
    return {"patterns": patterns, "dropped": sum(dropped.values()), "sketch": sketch.sketched(seen)}


def _told(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{column}={row[column]}" for column in ("calls", "timed_calls", "timed_ns", "one_in", "dropped"))


def _pattern(name: str, number: int, row: Mapping[str, Any]) -> Known:
    try:
        return _known(row["operator"], row["dtype"], row["axes"], row["layouts"])
    except _FaultError as fault:
        raise _malformed(name, f"row {number}, {fault}") from None


@lru_cache(maxsize=1 << 16)
def _known(operator: str, dtype: str, axes: str, layouts: str) -> Known:
    """The same patterns come from every host and in every window.

    Raises:
        _FaultError: axes or layouts are not what they must be.
    """
    _check_names(operator, dtype)
    extents = _extents("axes", axes)
    try:
        pattern = Pattern(
            operator,
            dtype,
            records.sorted_json(extents),
            records.sorted_json([vars(one) for one in layouts_of(layouts)]),
        )
    except MalformedRecordError as error:
        raise _FaultError(f"layouts: {error}") from None
    if not pattern.layouts.isascii():
        raise _FaultError(f"layouts: found {layouts[:80]!a}, expected names of element types")
    return Known(pattern, *sketch.stream_of(operator, dtype, extents))


def _request_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    tokens: dict[str, Counter[int]] = {"prompt_tokens": Counter(), "generated_tokens": Counter()}
    sums: Counter[str] = Counter()
    accepted: Counter[int] = Counter()
    seen: list[Observation] = []
    for number, row in enumerate(rows):
        _check_request(name, number, row)
        for column, counter in tokens.items():
            counter[row[column]] += row["weight"]
        sums["dropped_requests"] += row["dropped"]
        for column in ("cached_tokens", "drafts"):
            sums[column] += row[column] * row["weight"]
        for position, drafts in enumerate(_accepted(name, number, row)):
            accepted[position] += drafts * row["weight"]
        at_ns = _arrival_ns(row)
        seen.append((PROMPTS, row["prompt_tokens"], at_ns, row["weight"], 0))
        seen.append((ANSWERS, row["generated_tokens"], at_ns, row["weight"], 0))
    return {**tokens, **sums, "accepted": accepted, "sketch": sketch.sketched(seen)}


def _arrival_ns(row: Mapping[str, Any]) -> int:
    """When the request came, or, where its clock cannot be right, when its window began."""
    arrival_ns, start_ns = row["arrival_ns"], row["window_start_ns"]
    within = start_ns - LONGEST_REQUEST_NS <= arrival_ns <= row["window_end_ns"]
    return int(arrival_ns if within and arrival_ns >= 0 else start_ns)


def _check_request(name: str, number: int, row: Mapping[str, Any]) -> None:
    least = {"prompt_tokens": 0, "generated_tokens": 0, "cached_tokens": 0, "drafts": 0, "weight": 1, "dropped": 0}
    for column, value in least.items():
        if row[column] < value:
            raise _malformed(name, f"row {number}, {column}: found {row[column]}, expected at least {value}")
    if row["cached_tokens"] > row["prompt_tokens"]:
        raise _malformed(
            name, f"row {number}, cached_tokens: found {row['cached_tokens']} of {row['prompt_tokens']} prompt tokens"
        )


def _accepted(name: str, number: int, row: Mapping[str, Any]) -> list[int]:
    """Of a request, drafts accepted by position: never more at a later one."""
    found = _parse_json(name, f"row {number}, accepted", row["accepted"])
    falling = [row["drafts"], *found] if isinstance(found, list) and all(type(n) is int for n in found) else [0, 1]
    if falling != sorted(falling, reverse=True) or falling[-1] < 0:
        raise _malformed(
            name,
            f"row {number}, accepted: found {row['accepted'][:80]}, expected a list that never rises, from "
            f"{row['drafts']} down",
        )
    return falling[1:]


def _edge_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    edges: Counter[Ends] = Counter()
    for number, row in enumerate(rows):
        place = f"row {number}"
        if min(row["output"], row["input"], row["uses"]) < 0 or row["calls"] < 1:
            raise _malformed(
                name, f"{place}: output, input and uses must not be negative, calls at least 1, found {row}"[:200]
            )
        try:
            _check_names(*filter(None, (row["producer"], row["consumer"])), row["dtype"])
        except _FaultError as fault:
            raise _malformed(name, f"{place}, {fault}") from None
        axes = {column: _axes(name, f"{place}, {column}", row[column]) for column in ("producer_axes", "consumer_axes")}
        edges[Ends(*({**row, **axes}[field] for field in Ends._fields))] += row["calls"]
    return {"edges": edges}


def _step_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    steps = NO_STEPS
    for number, row in enumerate(rows):
        times = StepTimes(row["steps"], row["calls"], row["step_ns"], row["operator_ns"])
        if times.steps < 1 or times.calls < times.steps or not 0 <= times.operator_ns <= times.step_ns:
            raise _malformed(
                name, f"row {number}: {times}, expected a call per step at least and operator_ns within step_ns"
            )
        steps += times
    return {"steps": steps}


def _axes(name: str, place: str, text: str) -> str:
    """Extents by axis, in canonical form."""
    try:
        return records.sorted_json(_extents(place, text))
    except _FaultError as fault:
        raise _malformed(name, str(fault)) from None


def _check_names(*names: str) -> None:
    """Tables and pages show them."""
    for name in names:
        if not NAME.fullmatch(name):
            raise _FaultError(f"operator or dtype: found {name[:80]!a}, expected a name")


def _extents(place: str, text: str) -> dict[str, int]:
    try:
        axes = json.loads(text)
    except (ValueError, RecursionError):
        raise _FaultError(f"{place}: found {text[:80]!r}, expected JSON") from None
    if not isinstance(axes, dict) or not all(_is_extent(name, extent) for name, extent in axes.items()):
        raise _FaultError(f"{place}: found {text[:80]!a}, expected extents of at least 1 by name")
    return axes


def _is_extent(name: str, extent: Any) -> bool:
    return name.isascii() and type(extent) is int and 0 < extent < sketch.MAX_EXTENT


def _parse_json(name: str, place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed(name, f"{place}: found {text[:80]!r}, expected JSON") from None


def _malformed(name: str, fault: str) -> SpoolObjectError:
    return SpoolObjectError(f"spool object {name}: {fault}; delete it, or look at the host that wrote it")
