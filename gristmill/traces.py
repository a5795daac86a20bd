"""Request traces: when requests arrive, how long their prompts are, how much they generate.

Reads the Azure LLM inference CSV (`TIMESTAMP,ContextTokens,GeneratedTokens`) and Mooncake JSONL (`timestamp` in
milliseconds, `input_length`, `output_length`), told apart by their first line. Where no trace is at hand, requests are
drawn from a table of quantiles of the Azure code trace that ships with the package.
"""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from gristmill import records
from gristmill.errors import TraceError

AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
QUANTILE_FILE = "azure_code_quantiles.json"


@dataclass(frozen=True)
class Request:
    """One request of a trace."""

    arrival_s: float
    """Since the first request of the trace."""
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class QuantileTable:
    """Evenly spaced quantiles, from the minimum to the maximum, of one trace. Derived figures, no rows."""

    source: str
    licence: str
    citation: str
    requests: int
    prompt_tokens: tuple[float, ...]
    generated_tokens: tuple[float, ...]
    gap_s: tuple[float, ...]
    """Between one arrival and the next."""


def read_trace(path: Path) -> tuple[Request, ...]:
    """All requests of a trace file, ordered by arrival.

    Raises:
        TraceError: no such file, neither format, no row, or a row with a missing or malformed field: file, row number
            (the first line of the file is 1) and field are named.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path}: cannot be read ({error}); expected an Azure CSV or Mooncake JSONL") from None
    return parse_trace(lines, str(path))


def parse_trace(lines: Sequence[str], name: str) -> tuple[Request, ...]:
    """As `read_trace`, from the lines of a file called `name`."""
    head = next((line for line in lines if line.strip()), "")
    if head.lstrip().startswith("{"):
        found = [mooncake_request(row, place) for place, row in json_rows(lines, name)]
    elif AZURE_FIELDS[0] in head:
        found = list(azure_rows(lines, name))
    else:
        raise TraceError(
            f"trace {name}: row 1 is {head[:60]!r}; expected the header {','.join(AZURE_FIELDS)} or JSON objects "
            f"with {', '.join(MOONCAKE_FIELDS)}"
        )
    if not found:
        raise TraceError(f"trace {name}: holds no request; give a file with at least one row")
    found.sort(key=lambda request: request.arrival_s)
    first_s = found[0].arrival_s
    return tuple(replace(request, arrival_s=request.arrival_s - first_s) for request in found)


def azure_rows(lines: Iterable[str], name: str) -> Iterator[Request]:
    """Requests as they stand in an Azure CSV; arrivals are since 1970. Errors as `read_trace`."""
    for place, row in csv_rows(lines, name, AZURE_FIELDS):
        yield Request(
            _timestamp_s(row["TIMESTAMP"], place),
            token_count(row["ContextTokens"], place, "ContextTokens", 1),
            token_count(row["GeneratedTokens"], place, "GeneratedTokens", 0),
        )


def mooncake_request(row: Mapping[str, Any], place: str) -> Request:
    """The request of one Mooncake row; its arrival is since the trace began. Errors as `read_trace`."""
    return Request(
        milliseconds(row, "timestamp", place) / 1000,
        token_count(row.get("input_length"), place, "input_length", 1),
        token_count(row.get("output_length"), place, "output_length", 0),
    )


def csv_rows(lines: Iterable[str], name: str, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row of a CSV with a header that has these fields, and its place for messages. Errors as `read_trace`."""
    reader = csv.DictReader(line + "\n" for line in lines)
    try:
        missing = [field for field in fields if field not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(
                f"trace {name}: row 1, field {missing[0]}: the header lacks it; it has {reader.fieldnames}"[:300]
            )
        for row in reader:
            yield f"trace {name}: row {reader.line_num}", row
    except csv.Error as error:
        raise TraceError(f"trace {name}: row {reader.line_num}: not CSV ({error})") from None


def json_rows(lines: Iterable[str], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a file with one per line, and its place for messages. Errors as `read_trace`."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"trace {name}: row {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{place}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise TraceError(f"{place}: found {line[:60]!r}, expected an object a line")
        yield place, row


def _timestamp_s(text: str | None, place: str) -> float:
    """Seconds since the epoch. Azure writes seven decimals, where Python reads six, and in 2024 the zone as well."""
    whole, dot, decimals = (text or "").strip().removesuffix("+00:00").partition(".")
    try:
        return datetime.fromisoformat(f"{whole}+00:00").timestamp() + (_fraction(decimals) if dot else 0.0)
    except ValueError:
        raise TraceError(
            f"{place}, field TIMESTAMP: found {text!r}, expected a time like 2023-11-16 18:17:03.9799600"
        ) from None


def _fraction(decimals: str) -> float:
    if not (decimals.isascii() and decimals.isdigit()):
        raise ValueError(decimals)
    return float(f"0.{decimals}")


def token_count(value: Any, place: str, field: str, least: int) -> int:
    """A number of tokens, as JSON or as text. Errors as `read_trace`."""
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) < 10:
            value = int(text)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
        raise TraceError(f"{place}, field {field}: found {value!r}, expected a whole number from {least} to 999999999")
    return value


def milliseconds(row: Mapping[str, Any], field: str, place: str) -> float:
    """Milliseconds since the trace began. Errors as `read_trace`."""
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**15:
        raise TraceError(f"{place}, field {field}: found {value!r}, expected milliseconds from 0 on")
    return float(value)


def scale(
    requests: Sequence[Request], prompt_factor: float = 1.0, max_prompt: int = 1 << 20, max_generated: int = 1 << 20
) -> tuple[Request, ...]:
    """The same requests for a smaller engine: prompts times a factor, both lengths capped, each at least 1."""
    return tuple(
        Request(
            request.arrival_s,
            max(1, min(max_prompt, round(request.prompt_tokens * prompt_factor))),
            max(1, min(max_generated, request.generated_tokens)),
        )
        for request in requests
    )


def quantile_requests(seed: int, n: int) -> tuple[Request, ...]:
    """`n` requests drawn from the shipped quantiles of the Azure code trace; lengths and gaps are independent."""
    table = shipped_quantiles()
    generator = random.Random(seed)
    arrival_s = 0.0
    drawn = []
    for _ in range(n):
        prompt = max(1, round(_draw(table.prompt_tokens, generator.random())))
        generated = max(1, round(_draw(table.generated_tokens, generator.random())))
        drawn.append(Request(arrival_s, prompt, generated))
        arrival_s += _draw(table.gap_s, generator.random())
    return tuple(drawn)


def shipped_quantiles() -> QuantileTable:
    """The table in the package."""
    content = resources.files("gristmill").joinpath("data", QUANTILE_FILE).read_bytes()
    return records.parse(QuantileTable, content, QUANTILE_FILE)


def quantiles_of(requests: Sequence[Request], points: int, source: str, licence: str, citation: str) -> QuantileTable:
    """Summarises a trace; this is how the shipped table was made."""
    arrivals = [request.arrival_s for request in requests]
    gaps = [after - before for before, after in itertools.pairwise(arrivals)] or [0.0]
    return QuantileTable(
        source,
        licence,
        citation,
        len(requests),
        _quantiles([request.prompt_tokens for request in requests], points),
        _quantiles([request.generated_tokens for request in requests], points),
        _quantiles(gaps, points),
    )


def _quantiles(values: Sequence[float], points: int) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(round(_draw(ordered, i / (points - 1)), 4) for i in range(points))


def _draw(quantiles: Sequence[float], share: float) -> float:
    """Linear interpolation in a sorted sequence; `share` 0 is its start, 1 its end."""
    place = share * (len(quantiles) - 1)
    below = min(int(place), len(quantiles) - 1)
    above = min(below + 1, len(quantiles) - 1)
    return quantiles[below] + (quantiles[above] - quantiles[below]) * (place - below)
