"""Trace readers: round trips, and one clear line for every kind of damage."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import TraceError
from gristmill.traces import (
    QuantileTable,
    Request,
    parse_trace,
    quantile_requests,
    quantiles_of,
    read_trace,
    scale,
    shipped_quantiles,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:17:03.9799600,4808,10"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
START = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)

rows = st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 10**5)), min_size=1, max_size=30)


def expected(found: list[tuple[int, int, int]], unit: float) -> list[Request]:
    ordered = sorted(found, key=lambda row: row[0])
    return [Request((row[0] - ordered[0][0]) / unit, row[1], row[2]) for row in ordered]


@given(rows)
def test_azure_round_trip(found: list[tuple[int, int, int]]) -> None:
    lines = [HEADER]
    for microseconds, prompt, generated in found:
        at = START + timedelta(microseconds=microseconds)
        lines.append(f"{at:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{generated}")
    for read, wanted in zip(parse_trace(lines, "t"), expected(found, 1e6), strict=True):
        assert read.arrival_s == pytest.approx(wanted.arrival_s, abs=1e-5)
        assert (read.prompt_tokens, read.generated_tokens) == (wanted.prompt_tokens, wanted.generated_tokens)


def test_azure_rows_of_2024_name_their_zone() -> None:
    rows_2024 = ["2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01+00:00,2399,6"]
    assert parse_trace([HEADER, *rows_2024], "t")[1].arrival_s == pytest.approx(0.99007)


@given(rows)
def test_mooncake_round_trip(found: list[tuple[int, int, int]]) -> None:
    lines = [json.dumps({"timestamp": ms, "input_length": p, "output_length": g, "hash_ids": []}) for ms, p, g in found]
    for read, wanted in zip(parse_trace(lines, "t"), expected(found, 1e3), strict=True):
        assert read.arrival_s == pytest.approx(wanted.arrival_s)
        assert (read.prompt_tokens, read.generated_tokens) == (wanted.prompt_tokens, wanted.generated_tokens)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("2023-11-16 18:17:03.9799600,4808,", "GeneratedTokens"),
        ("2023-11-16 18:17:03.9799600,4808", "GeneratedTokens"),
        ("2023-11-16 18:17:03.9799600,many,10", "ContextTokens"),
        ("2023-11-16 18:17:03.9799600,0,10", "ContextTokens"),
        ("2023-11-16 18:17:03.9799600,-5,10", "ContextTokens"),
        ("2023-11-16 18:17:03.9799600,4.5,10", "ContextTokens"),
        ("yesterday,4808,10", "TIMESTAMP"),
        ("2023-11-16 18:17:03.97x,4808,10", "TIMESTAMP"),
        ("2023-11-16 18:17:03.,4808,10", "TIMESTAMP"),
        (",4808,10", "TIMESTAMP"),
    ],
)
def test_bad_azure_rows_name_file_row_and_field(tmp_path: Path, row: str, field: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([HEADER, GOOD, row, GOOD]))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert str(path) in message
    assert "row 3" in message
    assert field in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ('{"timestamp": 1, "input_length": 5}', "output_length"),
        ('{"timestamp": 1, "input_length": "5x", "output_length": 1}', "input_length"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1}', "timestamp"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1}', "timestamp"),
        ('{"timestamp": true, "input_length": 5, "output_length": 1}', "timestamp"),
        ('{"timestamp": 1, "input_length": true, "output_length": 1}', "input_length"),
        ('{"timestamp": 1, "input_leng', "not JSON"),
        ("[1, 2]", "expected an object"),
    ],
)
def test_bad_mooncake_rows_name_row_and_field(row: str, named: str) -> None:
    good = '{"timestamp": 0, "input_length": 5, "output_length": 1}'
    with pytest.raises(TraceError, match="row 3") as caught:
        parse_trace([good, good, row], "t.jsonl")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "expected the header"),
        (["hello"], "expected the header"),
        ([HEADER], "no request"),
        (["TIMESTAMP,ContextTokens", "1,2"], "GeneratedTokens"),
    ],
)
def test_files_that_are_no_trace(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        parse_trace(lines, "t")


@given(st.lists(st.text(max_size=40), max_size=6), st.sampled_from(["", HEADER, "{"]))
def test_garbage_is_a_trace_error_or_a_trace(lines: list[str], head: str) -> None:
    try:
        found = parse_trace([head, *lines], "t")
    except TraceError as error:
        assert str(error).startswith("trace t: ")
    else:
        assert found


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for path in (binary, tmp_path / "absent.csv", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            read_trace(path)


@given(rows, st.floats(0.0001, 2), st.integers(1, 500), st.integers(1, 500))
def test_scaling_keeps_order_and_bounds(
    found: list[tuple[int, int, int]], factor: float, max_prompt: int, max_generated: int
) -> None:
    requests = [Request(float(a), p, g) for a, p, g in found]
    scaled = scale(requests, factor, max_prompt, max_generated)
    assert [r.arrival_s for r in scaled] == [r.arrival_s for r in requests]
    assert all(1 <= r.prompt_tokens <= max_prompt and 1 <= r.generated_tokens <= max_generated for r in scaled)
    assert scale(requests) == tuple(Request(float(a), p, max(1, g)) for a, p, g in found)


def test_drawn_requests_follow_the_table_and_the_seed() -> None:
    table = shipped_quantiles()
    drawn = quantile_requests(5, 4000)
    assert drawn == quantile_requests(5, 4000)
    assert drawn[:50] != quantile_requests(6, 50)
    assert "CC-BY 4.0" in table.licence
    assert [r.arrival_s for r in drawn] == sorted(r.arrival_s for r in drawn)
    again = quantiles_of(drawn, 101, "", "", "")
    for share in (25, 50, 75):
        assert again.prompt_tokens[share] == pytest.approx(table.prompt_tokens[share], rel=0.1)
        assert again.generated_tokens[share] == pytest.approx(table.generated_tokens[share], abs=2)


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces on this machine")
def test_shipped_quantiles_are_those_of_the_trace() -> None:
    shipped = shipped_quantiles()
    requests = read_trace(TRACES / "AzureLLMInferenceTrace_code.csv")
    made = quantiles_of(requests, 101, shipped.source, shipped.licence, shipped.citation)
    assert made == shipped
    assert isinstance(made, QuantileTable)
    assert len(read_trace(TRACES / "mooncake_synthetic_trace.jsonl")) == 3993
