"""Hardware profiles: what a file must be, that each number has its source, and that a device is one file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import records
from gristmill.hardware import describe_gpu, gpus_of_nvidia_smi, local_cpu
from kernels.devices.device_profile import (
    DTYPES,
    FOLDER,
    CacheLevel,
    DeviceLimits,
    DeviceProfile,
    Source,
    limits_of,
    parse,
    profile_of,
    profiles,
    read_folder,
)
from kernels.errors import DeviceProfileError
from kernels.models.shares import DEVICES

FILES = sorted(FOLDER.glob("*.json"))
GPU_TARGETS = {"sm_80", "sm_90", "sm_100", "sm_103", "sm_120", "gfx942"}
SHARED_BYTES = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "sm_103": 227, "sm_120": 99, "gfx942": 64}
"""KiB that one block can ask for."""
H200: dict[str, Any] = json.loads((FOLDER / "sm_90-h200.json").read_text())
PLACES = [
    *[(name,) for name in H200],
    *[("limits", name) for name in H200["limits"]],
    *[("gflops", name) for name in H200["gflops"]],
    *[("sources", index, name) for index in range(len(H200["sources"])) for name in ("title", "url", "states")],
    ("caches", 0, "size_bytes"),
    ("caches", 0, "level"),
]


def changed(place: tuple[Any, ...], value: object) -> str:
    document = copy.deepcopy(H200)
    inner: Any = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return json.dumps(document)


def without(*place: Any) -> str:
    document = copy.deepcopy(H200)
    inner: Any = document
    for step in place[:-1]:
        inner = inner[step]
    del inner[place[-1]]
    return json.dumps(document)


def test_the_architectures_that_fleets_run_on_have_profiles_and_limits() -> None:
    found = {profile.architecture for profile in profiles().values() if profile.backend != "cpu"}
    assert found >= GPU_TARGETS
    assert {target: limits_of(target).block_shared_bytes >> 10 for target in GPU_TARGETS} == SHARED_BYTES
    assert limits_of("sm_90").registers == 65536
    assert (limits_of("sm_120").warps, limits_of("gfx942").warp_threads) == (48, 64)


def test_limits_of_one_architecture_are_not_taken_for_anothers() -> None:
    with pytest.raises(DeviceProfileError, match=r"architecture 'sm_101': .*expected gfx942, sm_100, .*add a file"):
        limits_of("sm_101")
    with pytest.raises(DeviceProfileError, match="x86_64"):
        limits_of("x86_64-AuthenticAMD-25-17")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_of_each_number_where_it_comes_from(path: Path) -> None:
    document = json.loads(path.read_text())
    for index, source in enumerate(document["sources"]):
        less = copy.deepcopy(document)
        del less["sources"][index]
        with pytest.raises(DeviceProfileError, match="no source states it"):
            parse(json.dumps(less), path.name)
        more = copy.deepcopy(document)
        more["sources"].append({**source, "title": "another"})
        with pytest.raises(DeviceProfileError, match="more than one source"):
            parse(json.dumps(more), path.name)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (changed(("memory_bandwidth_gb_s",), 0), r"memory_bandwidth_gb_s is 0.0, expected a number above 0"),
        (changed(("gflops", "bfloat16"), -1.0), r"gflops.bfloat16 is -1.0"),
        (changed(("gflops", "nvfp4"), 1.0), r"gflops is of .*nvfp4, expected float32 and any of bfloat16"),
        (without("gflops", "float32"), r"gflops is of bfloat16.*expected float32"),
        (changed(("architecture",), "sm90"), r"architecture is 'sm90', expected sm_90, gfx942 or"),
        (changed(("name",), "H 200"), r"name is 'H 200', expected lower-case words"),
        (changed(("limits", "registers"), 4096), r"limits.thread_registers is 255: not even one warp"),
        (changed(("limits", "block_shared_bytes"), 233472), r"limits.block_shared_bytes is 233472"),
        (changed(("limits", "warps"), 16), r"limits.warps is 16: a block of 1024 threads needs more"),
        (without("limits"), r"limits: expected for GPUs"),
        (changed(("sources", 0, "url"), "data sheet"), r"sources: expected a title and an address"),
        (changed(("sources", 0, "states"), ["gflops", "tflops"]), r"'tflops' is stated and is no number"),
        (changed(("caches",), [H200["caches"][0]] * 2), r"caches are of levels \[1, 1\], expected each once"),
        (changed(("schema_version",), 2), r"schema_version is 2"),
        (changed(("memory_bandwith_gb_s",), 1.0), r"unknown field 'memory_bandwith_gb_s'"),
        (without("title"), r"field 'title' is missing"),
        ("{", r"not JSON"),
        (b"\xff\xfe\x00", r"h200.json"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_place(content: str | bytes, told: str) -> None:
    with pytest.raises(DeviceProfileError, match=told) as caught:
        parse(content, "h200.json")
    assert str(caught.value).startswith("h200.json")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**70) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(place=st.sampled_from(PLACES), value=JSON_VALUES)
def test_whatever_stands_in_a_place_gives_a_profile_or_one_error(place: tuple[Any, ...], value: object) -> None:
    try:
        profile = parse(changed(place, value), "h200.json")
    except DeviceProfileError as error:
        assert str(error).startswith("h200.json")
    else:
        assert parse(records.canonical_json(profile), "again") == profile


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_give_one_error(content: bytes | str) -> None:
    with pytest.raises(DeviceProfileError):
        parse(content, "x.json")


POSITIVE = st.integers(1, 10**9)


@st.composite
def gpu_profiles(draw: st.DrawFn) -> DeviceProfile:
    """Profiles that hold, of devices that do not exist."""
    warp, unit = draw(st.sampled_from([32, 64])), draw(st.sampled_from([1, 4, 8]))
    warps, per_thread, reserved = draw(st.integers(1, 64)), draw(st.integers(1, 512)), draw(st.integers(0, 4096))
    shared = draw(st.integers(reserved + 1, 1 << 20))
    limits = DeviceLimits(
        warp_threads=warp,
        warps=warps,
        blocks=draw(st.integers(1, 64)),
        block_threads=draw(st.integers(1, warps * warp)),
        registers=draw(st.integers(warp * per_thread, 10**6)),
        thread_registers=per_thread,
        register_unit=unit,
        shared_bytes=shared,
        block_shared_bytes=draw(st.integers(1, shared - reserved)),
        reserved_shared_bytes=reserved,
    )
    rates = st.floats(0.5, 1e9, allow_nan=False)
    gflops = draw(st.dictionaries(st.sampled_from(DTYPES[1:]), rates)) | {"float32": draw(rates)}
    levels = draw(st.lists(st.integers(1, 4), unique=True).map(sorted))
    states = ("memory_bandwidth_gb_s", "gflops", "limits", *(["caches"] if levels else []))
    return DeviceProfile(
        name=draw(st.from_regex(r"[a-z0-9]{1,5}(-[a-z0-9]{1,4})?", fullmatch=True)),
        title="made up",
        architecture=draw(st.sampled_from(["sm_90", "sm_103a", "gfx90a", "gfx1100"])),
        reported_as=tuple(draw(st.lists(st.text(max_size=9), max_size=2))),
        memory_bandwidth_gb_s=draw(rates),
        gflops=gflops,
        sources=(Source("a data sheet", "https://example.com/", states),),
        caches=tuple(CacheLevel(level, draw(POSITIVE), draw(POSITIVE)) for level in levels),
        limits=limits,
    )


@given(gpu_profiles())
def test_a_profile_that_holds_is_read_as_it_was_written(profile: DeviceProfile) -> None:
    assert parse(records.canonical_json(profile), profile.file_name) == profile


def test_a_new_device_is_one_file(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = read_folder(tmp_path)
    new = {**H200, "name": "x100", "architecture": "sm_130", "reported_as": ["NVIDIA X100"]}
    (tmp_path / "sm_130-x100.json").write_text(json.dumps(new))
    after = read_folder(tmp_path)
    assert set(after) - set(before) == {"x100"}
    assert after["x100"].limits == before["h200"].limits
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("file_name", "changes", "told"),
    [
        ("sm_90-x.json", {}, r"holds h200 of sm_90; name it sm_90-h200.json"),
        ("sm_91-h200.json", {"architecture": "sm_91"}, r"holds a h200 already"),
        ("sm_90-x.json", {"name": "x"}, r"'NVIDIA H200' is what h200 is reported as"),
        (
            "sm_90-x.json",
            {"name": "x", "reported_as": [], "limits": {**H200["limits"], "warps": 48}},
            "its limits are not",
        ),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    tmp_path: Path, file_name: str, changes: dict[str, Any], told: str
) -> None:
    (tmp_path / "sm_90-h200.json").write_text(json.dumps(H200))
    (tmp_path / file_name).write_text(json.dumps({**H200, **changes}))
    with pytest.raises(DeviceProfileError, match=told):
        read_folder(tmp_path)


def test_a_device_is_known_by_the_key_that_its_hosts_have() -> None:
    (h200,) = gpus_of_nvidia_smi("NVIDIA H200, 9.0")
    found = profile_of(h200.key)
    assert found is not None and found.name == "h200"
    assert profile_of(describe_gpu("AMD Instinct MI300X", "gfx942", 304).key) is profiles()["mi300x"]
    assert profile_of(describe_gpu("AMD Instinct MI300X", "gfx942", 38).key) is None
    assert profile_of(describe_gpu("NVIDIA H200", "sm_103").key) is None
    assert profile_of(local_cpu().key) is None


def test_shares_of_time_know_the_same_devices() -> None:
    assert list(DEVICES) == list(profiles())
    assert DEVICES["h200"].memory_bandwidth_gb_s == profiles()["h200"].memory_bandwidth_gb_s
    assert DEVICES["h200"].flops_per_ns("float8_e4m3fn") == profiles()["h200"].gflops["float8"]
    assert DEVICES["h200"].flops_per_ns("float16") == profiles()["h200"].gflops["bfloat16"]
