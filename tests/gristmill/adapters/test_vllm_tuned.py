"""Tuned configurations stay in their ranges, however the engine's lookup rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records, tuned_table
from gristmill.adapters import vllm_tuned
from gristmill.adapters.vllm_tuned import FOLDER, VARIABLE, content, file_name, install, keys_of, point, steps, write
from gristmill.domain import AxisRange, Domain
from gristmill.errors import EngineError
from gristmill.generation import Generation, empty
from gristmill.kernel_table import FileRef, KernelTable, TableEntry
from gristmill.tuned_table import BaselineKey, TunedFile, TunedRange


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
    assert not point(environ, str(tmp_path))
    (tmp_path / FOLDER / "E=8,N=2,device_name=X.json").touch()
    assert point(environ, str(tmp_path))
    assert environ == {VARIABLE: str(tmp_path / FOLDER)}
    other = {VARIABLE: "/etc/tuned"}
    assert not point(other, str(tmp_path))
    assert other == {VARIABLE: "/etc/tuned"}


def formula(tokens: int) -> dict[str, int]:
    """A copy of the rule of vLLM 0.32's `get_default_config` for 8 experts without quantisation, on CUDA."""
    return {
        "BLOCK_SIZE_M": 16 if tokens <= 32 else 32 if tokens <= 96 else 64 if tokens <= 512 else 128,
        "BLOCK_SIZE_N": 64 if tokens <= 64 else 128,
        "BLOCK_SIZE_K": 128 if tokens <= 64 else 64,
        "GROUP_SIZE_M": 16 if tokens // 8 > 128 else 1,
        "SPLIT_K": 1,
        "num_warps": 4 if tokens <= 128 else 8,
        "num_stages": 4 if tokens <= 32 else 3,
    }


FORMULA = steps(formula, 4096)
VERSIONS = {"vllm": "0.32.0", "triton": "3.9.0"}
NAME = "E=8,N=14336,device_name=NVIDIA_H200.json"
MADE = TunedFile(NAME, VERSIONS, (TunedRange(1, 4, {"num_warps": 2}), TunedRange(8, 8, {"num_warps": 1})), FORMULA)


@given(st.lists(st.integers(1, 4096), min_size=2, max_size=8, unique=True).map(sorted))
def test_prompts_keep_what_the_engine_s_formula_says_wherever_nothing_was_measured(ends: list[int]) -> None:
    ranges = tuple(TunedRange(low, high, {"tuned": low}) for low, high in zip(ends[::2], ends[1::2], strict=False))
    keys = dict(sorted(content(replace(MADE, ranges=ranges)).items()))
    edges = {edge + by for one in ranges for edge in (one.low, one.high) for by in (-1, 0, 1)}
    for tokens in sorted({*edges, *(key.tokens + by for key in FORMULA for by in (-1, 0, 1)), 10**6} - {0}):
        inside = next((one for one in ranges if one.low <= tokens <= one.high), None)
        assert looked_up(keys, tokens) == (inside.configuration if inside else formula(tokens)), tokens


def test_a_formula_is_kept_by_both_ends_of_each_step() -> None:
    assert [key.tokens for key in FORMULA][:6] == [1, 32, 33, 64, 65, 96]
    keys = {key.tokens: key.configuration for key in FORMULA}
    assert all(looked_up(keys, tokens) == formula(tokens) for tokens in range(1, 4097))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((8, 14336, "NVIDIA H100 80GB HBM3", None), "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"),
        ((8, 7168, "NVIDIA H200 NVL", "fp8_w8a8"), "E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"),
        (
            (256, 256, "NVIDIA H200", "fp8_w8a8", (128, 128)),
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        (
            (64, 1280, "AMD Instinct MI300X", "int8_w8a16"),
            "E=64,N=1280,device_name=AMD_Instinct_MI300X,dtype=int8_w8a16.json",
        ),
    ],
)
def test_files_are_named_as_the_engine_looks_for_them(arguments: tuple, name: str) -> None:
    assert file_name(*arguments) == name
    assert vllm_tuned.FILE_NAME.fullmatch(name)


def generation(folder: Path, made: TunedFile, *claimed: tuple[int, int]) -> Generation:
    """That claims these ranges of a file."""
    path = folder / "blob"
    path.write_bytes(records.canonical_json(made))
    sha256 = records.sha256_hex(path.read_bytes())
    file = FileRef(tuned_table.OBJECT, sha256, path.stat().st_size)
    entries = tuple(
        TableEntry(
            Domain("vllm_fused_moe", "unquantised", (AxisRange("tokens", *ends),)), "c", file, False, (), "1.2", "1.1"
        )
        for ends in claimed
    )
    table = KernelTable("vllm_fused_moe", "unquantised", "sm_90-NVIDIA_H200", entries)
    return Generation(3, "stable", table.hardware, (table,), {sha256: path})


def test_a_generation_s_file_is_put_in_place_and_goes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    assert install(generation(tmp_path, MADE, (1, 4), (8, 8)), folder, VERSIONS) == ()
    read = {int(tokens): one for tokens, one in json.loads((folder / NAME).read_text()).items()}
    assert read == content(MADE)
    assert looked_up(read, 2) == {"num_warps": 2} and looked_up(read, 5) == formula(5)
    assert install(empty("stable", ""), folder, VERSIONS) == ()
    assert list(folder.iterdir()) == []


def test_a_range_that_was_revoked_is_the_engine_s_again(tmp_path: Path) -> None:
    assert install(generation(tmp_path, MADE, (8, 8)), tmp_path / FOLDER, VERSIONS) == ()
    read = {int(tokens): one for tokens, one in json.loads((tmp_path / FOLDER / NAME).read_text()).items()}
    assert looked_up(read, 8) == {"num_warps": 1}
    assert [looked_up(read, tokens) for tokens in (1, 2, 3, 4)] == [formula(1)] * 4


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        ({**VERSIONS, "vllm": "0.33.0"}, "measured with vllm 0.32.0, and this host runs 0.33.0"),
        ({"vllm": "0.32.0"}, "measured with triton 3.9.0, and this host runs none"),
    ],
)
def test_what_was_measured_with_other_versions_is_not_used(tmp_path: Path, versions: dict[str, str], why: str) -> None:
    folder = tmp_path / FOLDER
    sound = generation(tmp_path, MADE, (1, 4), (8, 8))
    assert install(sound, folder, {**VERSIONS, "vllm": "0.32.0+cu130"}) == ()
    (note,) = install(sound, folder, versions)
    assert why in note
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("made", "claimed", "why"),
    [
        (MADE, (1, 16), "claims 1 to 16 tokens"),
        (replace(MADE, file_name="../else.json"), (1, 4), "looks for names"),
    ],
)
def test_what_does_not_hold_costs_itself_alone(
    tmp_path: Path, made: TunedFile, claimed: tuple[int, int], why: str
) -> None:
    (note,) = install(generation(tmp_path, made, claimed), tmp_path / FOLDER, VERSIONS)
    assert why in note
    assert not list(tmp_path.glob("**/*.json"))


def test_a_damaged_object_costs_itself_alone(tmp_path: Path) -> None:
    broken = generation(tmp_path, MADE, (1, 4))
    (tmp_path / "blob").write_text("{")
    (note,) = install(broken, tmp_path / FOLDER, VERSIONS)
    assert "not JSON" in note


def test_a_baseline_key_is_what_the_engine_holds() -> None:
    file = replace(MADE, ranges=(), baseline=(BaselineKey(16, {"a": 1}), BaselineKey(1, {"a": 2})))
    assert looked_up(content(file), 300) == {"a": 1}
