"""The hardware key: what object code depends on, and nothing that names a machine."""

from __future__ import annotations

import platform

from gristmill.hardware import describe_cpu, local_cpu

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
