"""Tuned configurations stay in their ranges, however the engine's lookup rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.adapters.vllm_tuned import FOLDER, VARIABLE, TunedRange, keys_of, point, write
from gristmill.errors import EngineError


def looked_up(keys: dict[int, dict[str, int]], tokens: int) -> dict[str, int]:
    """The engine's rule."""
    return keys[min(keys, key=lambda key: abs(key - tokens))]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[TunedRange], dict[int, dict[str, int]]]:
    ends = sorted(draw(st.lists(st.integers(1, 300), min_size=2, max_size=6, unique=True)))
    ranges = [TunedRange(low, high, {"tuned": low}) for low, high in zip(ends[::2], ends[1::2], strict=False)]
    baseline = draw(st.lists(st.integers(1, 400), min_size=1, max_size=6, unique=True))
    return ranges, {key: {"baseline": key} for key in baseline}


@given(tables())
def test_each_number_of_tokens_gets_its_ranges_configuration_or_the_baselines(
    table: tuple[list[TunedRange], dict[int, dict[str, int]]],
) -> None:
    ranges, baseline = table
    keys = {key: dict(value) for key, value in sorted(keys_of(ranges, baseline).items())}
    for tokens in range(1, 500):
        inside = next((one for one in ranges if one.low <= tokens <= one.high), None)
        wanted = dict(inside.configuration) if inside else looked_up(baseline, tokens)
        assert looked_up(keys, tokens) == wanted, tokens


@pytest.mark.parametrize(
    ("ranges", "baseline"),
    [
        ([(1, 8), (8, 9)], {1: {}}),
        ([(0, 8)], {1: {}}),
        ([(9, 8)], {1: {}}),
        ([(1, 8)], {}),
    ],
)
def test_what_contradicts_itself_is_refused(ranges: list[tuple[int, int]], baseline: dict[int, dict[str, int]]) -> None:
    with pytest.raises(EngineError, match="ranges"):
        keys_of([TunedRange(low, high, {}) for low, high in ranges], baseline)


def test_a_file_lies_where_the_engine_looks(tmp_path: Path) -> None:
    name = "E=8,N=14336,device_name=NVIDIA_H100.json"
    path = write(tmp_path / FOLDER, name, keys_of([TunedRange(1, 4, {"num_warps": 4})], {1: {"num_warps": 8}}))
    assert json.loads(path.read_text()) == {"1": {"num_warps": 4}, "4": {"num_warps": 4}, "5": {"num_warps": 8}}
    with pytest.raises(EngineError, match="looks for names"):
        write(tmp_path, "../else.json", {})


def test_the_engine_is_pointed_there_unless_its_operator_named_another(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    assert not point(environ, str(tmp_path))
    assert environ == {}
    (tmp_path / FOLDER).mkdir()
    assert point(environ, str(tmp_path))
    assert environ == {VARIABLE: str(tmp_path / FOLDER)}
    other = {VARIABLE: "/etc/tuned"}
    assert not point(other, str(tmp_path))
    assert other == {VARIABLE: "/etc/tuned"}
