"""The hardware key: what object code depends on, and nothing that names a machine."""

from __future__ import annotations

import platform
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import hardware
from gristmill.hardware import (
    NVIDIA_QUERY,
    describe_cpu,
    describe_gpu,
    gpu_of_properties,
    gpus_of_nvidia_smi,
    gpus_of_rocminfo,
    hardware_of,
    local_cpu,
    local_gpu,
    local_hardware,
)
from gristmill.kernel_table import KernelTable

ZEN4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 fma avx512f avx512bw avx512vl avx512_vnni avx512_bf16

processor\t: 1
vendor_id\t: SomebodyElse
"""
GRAVITON = """processor\t: 0
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""


H200S = "NVIDIA H200, 9.0\nNVIDIA H200, 9.0\n"
ROCMINFO = """ROCk module is loaded
=====================
HSA System Attributes
=====================
Runtime Version:         1.1
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD EPYC 9474F 48-Core Processor
  Marketing Name:          AMD EPYC 9474F 48-Core Processor
  Vendor Name:             CPU
  Device Type:             CPU
  Cache Info:
    L1:                      32768(0x8000) KB
  Compute Unit:            96
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: FINE GRAINED
*******
Agent 2
*******
  Name:                    gfx942
  Marketing Name:          AMD Instinct MI300X
  Vendor Name:             AMD
  Device Type:             GPU
  Compute Unit:            304
  Max Waves Per CU:        32(0x20)
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
*** Done ***
"""


@pytest.fixture
def no_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A host without any GPU."""
    monkeypatch.setattr(hardware, "NVIDIA_DRIVER", tmp_path / "nvidiactl")
    monkeypatch.setattr(hardware, "AMD_DRIVER", tmp_path / "kfd")
    hardware._listed_gpus.cache_clear()
    yield
    hardware._listed_gpus.cache_clear()


def test_an_x86_key_ends_in_its_widest_vectors():
    cpu = describe_cpu(ZEN4, "x86_64", 2)
    assert cpu.key == "x86_64-AuthenticAMD-25-17-avx512_bf16"
    assert cpu.description == "AMD EPYC 9R14"
    assert cpu.cores == 2


def test_an_arm_key_is_made_of_its_own_fields():
    assert describe_cpu(GRAVITON, "aarch64", 4).key == "aarch64-0x41-8-0xd40-sve"


def test_fewer_features_are_other_hardware():
    plain = ZEN4.replace(" avx512_bf16", "").replace(" avx512_vnni", "")
    assert describe_cpu(plain, "x86_64", 2).key != describe_cpu(ZEN4, "x86_64", 2).key


def test_nothing_known_is_still_a_key():
    assert describe_cpu("", "riscv64", 1).key == "riscv64-unknown-0-0-scalar"


def test_this_machine_has_a_key_without_its_name():
    assert local_cpu().key.startswith(platform.machine())
    assert platform.node() not in local_cpu().key


def test_a_gpu_s_key_is_its_exact_architecture_and_name_whoever_reports_it() -> None:
    first, second = gpus_of_nvidia_smi(H200S)
    assert first == second
    assert (first.key, first.description, first.vector_flags) == ("sm_90-NVIDIA_H200", "NVIDIA H200", ())
    asked = types.SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, gcnArchName="NVIDIA H200"
    )
    assert (gpu_of_properties(asked).key, gpu_of_properties(asked).cores) == (first.key, 132)
    part = types.SimpleNamespace(name="NVIDIA H200 MIG 1g.18gb", major=9, minor=0, multi_processor_count=16)
    assert gpu_of_properties(part).key == "sm_90-NVIDIA_H200_MIG_1g.18gb"


def test_an_amd_gpu_s_key_tells_a_partition_from_the_whole() -> None:
    (whole,) = gpus_of_rocminfo(ROCMINFO)
    assert (whole.key, whole.cores) == ("gfx942-AMD_Instinct_MI300X-304", 304)
    asked = types.SimpleNamespace(
        name="AMD Instinct MI300X", major=9, minor=4, multi_processor_count=304, gcnArchName="gfx942:sramecc+:xnack-"
    )
    assert gpu_of_properties(asked) == whole
    (part,) = gpus_of_rocminfo(ROCMINFO.replace("304", "38"))
    assert part.key == "gfx942-AMD_Instinct_MI300X-38"


def test_nothing_carries_over_from_one_architecture_to_its_neighbour() -> None:
    b200, b300 = gpus_of_nvidia_smi("NVIDIA B200, 10.0\nNVIDIA B300 SXM6 AC, 10.3\n")
    assert (b200.key, b300.key) == ("sm_100-NVIDIA_B200", "sm_103-NVIDIA_B300_SXM6_AC")
    assert describe_gpu("X", "sm_100").key != describe_gpu("X", "sm_103").key
    assert KernelTable("rms_norm", "bfloat16", b200.key, ()).hardware != b300.key


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "NVIDIA-SMI has failed because", "a, b, c", "N/A, [N/A]"]
)
def test_tools_that_find_nothing_name_no_gpu(text: str) -> None:
    assert gpus_of_nvidia_smi(text) == gpus_of_rocminfo(text) == ()


@given(st.text(), st.text(), st.integers(0, 999))
def test_whatever_a_tool_says_a_key_is_one_word_of_a_store_s_keys(said: str, name: str, count: int) -> None:
    for one in (*gpus_of_nvidia_smi(said), *gpus_of_rocminfo(said), describe_gpu(name, "gfx942", count)):
        assert one.key
        assert all(letter.isascii() and (letter.isalnum() or letter in "_.-") for letter in one.key)


@pytest.mark.usefixtures("no_tool")
def test_the_hardware_of_a_host_is_its_gpu_where_it_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert local_hardware() == hardware_of("cuda") == local_cpu()
    hardware._listed_gpus.cache_clear()
    (tmp_path / "nvidiactl").touch()
    asked: list[tuple[str, ...]] = []

    def said(command: tuple[str, ...]) -> str:
        asked.append(command)
        return H200S

    monkeypatch.setattr(hardware, "_said", said)
    assert local_hardware().key == hardware_of("cuda").key == "sm_90-NVIDIA_H200"
    assert hardware_of("cpu") == local_cpu()
    assert asked == [NVIDIA_QUERY]


@pytest.mark.usefixtures("no_tool")
def test_torch_is_asked_for_the_device_that_it_holds_and_never_made_to_hold_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = types.SimpleNamespace(name="NVIDIA B200", major=10, minor=0, multi_processor_count=148)
    holding = False
    cuda = types.SimpleNamespace(
        is_initialized=lambda: holding, current_device=lambda: 3, get_device_properties={3: held}.__getitem__
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert local_gpu() is None
    holding = True
    found = local_gpu()
    assert found is not None and found.key == "sm_100-NVIDIA_B200"


def test_a_tool_that_is_missing_or_fails_says_nothing() -> None:
    assert hardware._said(("no-such-tool-of-any-driver",)) == ""
    assert hardware._said(("false",)) == ""
    assert hardware._said(("echo", "NVIDIA H200, 9.0")) == "NVIDIA H200, 9.0\n"
