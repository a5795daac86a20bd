"""Reports on disassemblies: canned ones of both architectures, and real ones of this host's compiler."""

from __future__ import annotations

import platform
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import assembly
from harness.builder import Builder
from kernels.verdict import ObjectReport

X86 = """
/tmp/object.so:     file format elf64-x86-64


Disassembly of section .plt:

0000000000001020 <expf@plt>:
    1020:\tjmp    QWORD PTR [rip+0x2fe2]        # 4008 <expf>

Disassembly of section .text:

0000000000001040 <frame_dummy>:
    1040:\tvaddps zmm0,zmm1,zmm2

0000000000001100 <gm_run._omp_fn.0>:
    1100:\tpush   rbp
    1104:\txor    eax,eax
    1108:\tvmovups zmm3,ZMMWORD PTR [rcx+rax*4]
    1110:\tvfmadd231ps zmm0,zmm3,zmm3
    1116:\tvmovups ZMMWORD PTR [rsp+0x40],zmm0
    111a:\tvgatherdps zmm4{k1},DWORD PTR [rsi+zmm5*4]
    1120:\tadd    rax,0x10
    1124:\tcmp    rax,rdx
    1127:\tjb     1108 <gm_run._omp_fn.0+0x8>
    1129:\tvdivss xmm5,xmm5,xmm0
    112d:\tinc    r8
    1130:\tjne    1104 <gm_run._omp_fn.0+0x4>
    1132:\tret

0000000000001200 <gm_run>:
    1200:\tlea    rdi,[rip+0xfffffffffffffef9]        # 1100 <gm_run._omp_fn.0>
    1207:\tcall   1020 <GOMP_parallel@plt>
    120c:\tnotrack jmp 1300 <helper>

0000000000001300 <helper>:
    1300:\tvmovss xmm0,DWORD PTR [rdi]
    1304:\tcall   1020 <expf@plt>
    1309:\tvdivss xmm0,xmm0,xmm1
    130d:\tcmp    rbx,rdi
    1310:\tjne    1300 <helper>
    1312:\tret

0000000000001400 <unreached>:
    1400:\tvsqrtps zmm0,zmm0
    1404:\tjmp    1400 <unreached>
"""
AARCH64 = """
object.so:     file format elf64-littleaarch64

Disassembly of section .text:

0000000000000700 <gm_run>:
 700:\tadrp\tx0, 0 <gm_run._omp_fn.0>
 704:\tadd\tx0, x0, #0x800
 708:\tbl\t5f0 <GOMP_parallel@plt>
 70c:\tret

0000000000000800 <gm_run._omp_fn.0>:
 800:\tmovi\tv0.4s, #0x0
 804:\tldr\tq1, [x0], #16
 808:\tfmla\tv0.4s, v1.4s, v1.4s
 80c:\tstr\tq0, [sp, #32]
 810:\tfdiv\ts5, s5, s6
 814:\tcmp\tx0, x1
 818:\tb.ne\t804 <gm_run._omp_fn.0+0x4>  // b.any
 81c:\tret
"""
SVE = """
object.so:     file format elf64-littleaarch64

0000000000000700 <gm_run>:
 700:\tld1w\t{z1.s}, p0/z, [x0, z3.s, sxtw #2]
 704:\tfmla\tz0.s, p0/m, z1.s, z1.s
 708:\twhilelo\tp0.s, x2, x1
 70c:\tb.any\t700 <gm_run>
 710:\tret
"""


def test_what_is_counted_on_x86():
    report = assembly.report(X86)
    assert report.architecture == "x86-64" and not report.scalable
    assert report.instructions == 13 + 3 + 6, "neither stubs, nor what gm_run does not reach"
    assert report.loop_instructions == 7 + 5, "innermost loops only"
    assert report.vector_bits == 512 and report.fma and report.serial_sums == 0
    assert (report.gathers, report.loop_divisions, report.loop_calls, report.spills) == (1, 1, 1, 1)
    assert "calls expf" in report.hint


def test_what_is_counted_on_aarch64():
    report = assembly.report(AARCH64)
    assert report.architecture == "aarch64"
    assert (report.instructions, report.loop_instructions, report.vector_bits) == (12, 6, 128)
    assert report.fma and (report.loop_divisions, report.loop_calls, report.spills) == (1, 0, 1)
    sve = assembly.report(SVE)
    assert sve.scalable and sve.vector_bits == 128 and sve.fma and sve.gathers == 1


def test_scalar_loops_and_serial_sums_are_told():
    scalar = X86.replace("zmm", "xmm").replace("231ps", "231ss").replace("vmovups", "vmovss").replace("expf@plt", "x")
    scalar = scalar.replace("\tvgatherdps xmm4{k1},DWORD PTR [rsi+xmm5*4]", "\tnop").replace("call ", "nop  ")
    report = assembly.report(scalar)
    assert report.vector_bits == 0 and "scalar (no vector arithmetic)" in report.hint
    additions = "".join(f"    11{40 + n}:\tvaddss xmm0,xmm0,xmm{n}\n" for n in range(1, 5))
    head = "\no:     file format elf64-x86-64\n\n0000000000001138 <gm_run>:\n"
    serial = f"{head}    1138:\tvmulps ymm1,ymm1,ymm1\n{additions}    1150:\tjne    1138 <gm_run>\n"
    report = assembly.report(serial)
    assert (report.vector_bits, report.serial_sums) == (256, 1) and "in order" in report.hint
    packed = serial.replace("vmulps", "vaddps")
    assert assembly.report(packed).serial_sums == 0


@pytest.mark.parametrize("text", ["", "nonsense\n", "\nx:     file format elf64-x86-64\n"])
def test_no_disassembly_is_said(text):
    report = assembly.report(text)
    assert report.note and not report.instructions and not report.hint


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*X86.splitlines(), *AARCH64.splitlines(), "  zz:\t", "    1: jmp 0"]), max_size=60))
def test_no_listing_breaks_it(lines):
    assembly.report("\n".join(lines))


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    return Builder(tmp_path_factory.mktemp("builds"))


LOOP = """#include "gristmill_kernel.h"
#include <cmath>
GM_EXPORT int32_t gm_run(const gm_call *call) {
    const float *x = (const float *)call->inputs[0].data;
    float *out = (float *)call->outputs[0].data;
    int64_t n = call->inputs[0].shape[0];
    BODY
    return 0;
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are of x86")
def test_this_host_s_compiler_is_understood(builder, cpp):
    plain = LOOP.replace("BODY", "for (int64_t i = 0; i < n; i++) out[i] = x[i] * x[i] + 1.0f;")
    narrow = builder.build(cpp("rms_norm", plain, flags=("-mprefer-vector-width=128",))).report
    scalar = builder.build(cpp("rms_norm", plain, flags=("-fno-tree-vectorize",))).report
    total = LOOP.replace("BODY", "float s = 0; for (int64_t i = 0; i < n; i++) s += x[i] * x[i]; out[0] = s;")
    serial, fast = (builder.build(cpp("rms_norm", total, flags=f)).report for f in ((), ("-ffast-math",)))
    calls = builder.build(
        cpp("rms_norm", LOOP.replace("BODY", "for (int64_t i = 0; i < n; i++) out[i] = std::exp(x[i]);"))
    ).report
    assert narrow.vector_bits == 128 and scalar.vector_bits == 0 and "scalar" in scalar.hint
    assert "in order" in serial.hint or "scalar" in serial.hint
    assert fast.vector_bits >= 128 and fast.serial_sums == 0
    assert calls.loop_calls >= 1 and "expf" in calls.hint


def test_a_report_is_kept_with_its_object(builder, cpp):
    candidate = cpp("rms_norm", LOOP.replace("BODY", "out[0] = x[0] + n;"))
    first, second = builder.build(candidate), builder.build(candidate)
    assert not first.cached and second.cached
    assert isinstance(first.report, ObjectReport) and first.report == second.report
    (builder.cache / f"{builder.key(candidate)}.report").unlink()
    assert builder.build(candidate).report is None


def test_a_failure_has_errors_and_no_report(builder, cpp):
    build = builder.build(cpp("rms_norm", "#warning nothing of this\nint x = missing;\n"))
    assert build.report is None and "nothing of this" in build.log
    assert build.errors.splitlines()[0].startswith("main.cpp:2:9: error: 'missing' was not declared")
    assert len(build.errors.splitlines()) == 3
    assert builder.build(cpp("rms_norm", LOOP.replace("BODY", ""))).errors == ""


def test_the_text_of_innermost_loops_is_what_an_agent_reads() -> None:
    text = assembly.loops(X86)
    assert "gm_run._omp_fn.0:\n  1108: vmovups zmm3,ZMMWORD PTR [rcx+rax*4]\n" in text
    assert "helper:\n  1300: vmovss xmm0,DWORD PTR [rdi]\n" in text
    assert "frame_dummy" not in text and "push" not in text and "vsqrtps" not in text
    assert assembly.loops("") == assembly.loops("not a listing") == ""


def test_loops_that_do_not_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = assembly.loops(X86)
    monkeypatch.setattr(assembly, "MAX_LOOPS_CHARACTERS", len(whole) - 1)
    cut = assembly.loops(X86)
    assert len(cut) < len(whole) and re.search(r"\d+ more loops\n$", cut)
