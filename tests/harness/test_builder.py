"""Builds: cached by content, sandboxed, and clear about what failed."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from harness import builder as builder_module
from harness.builder import Builder, BuildPool, check_flags
from harness.errors import FlagError, HostFaultError, NoCompilerError
from harness.sandbox import End

EMPTY = '#include "gristmill_kernel.h"\nGM_EXPORT int32_t gm_run(const gm_call *) { return 0; }\n'


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    return Builder(tmp_path_factory.mktemp("builds"))


def test_a_build_is_found_again(builder, cpp):
    candidate = cpp("rms_norm", EMPTY)
    first, second = builder.build(candidate), builder.build(candidate)
    assert first.path is not None and first.path.read_bytes()[:4] == b"\x7fELF"
    assert (second.path, second.sha256, second.cached) == (first.path, first.sha256, True)
    assert not first.cached


def test_the_key_is_what_is_built_and_with_what(builder, cpp):
    base = cpp("rms_norm", EMPTY)
    assert builder.key(base) == builder.key(cpp("softmax", EMPTY))
    changed = [cpp("rms_norm", EMPTY + "\n"), cpp("rms_norm", EMPTY, flags=("-O2",))]
    changed.append(replace(base, files={**base.files, "other.h": ""}))
    assert len({builder.key(candidate) for candidate in (base, *changed)}) == 4


COUNTING = """#include "gristmill_kernel.h"
struct __attribute__((visibility("default"))) Calls { inline static int32_t count = 0; };
template <class T> __attribute__((visibility("default"))) int32_t &total() { static int32_t made = 0; return made; }
GM_EXPORT int32_t gm_run(const gm_call *) { return 100 * ++Calls::count + ++total<int>(); }
"""


def test_generations_of_one_source_share_no_state(builder, cpp):
    """A host maps the next generation beside the last; symbols that a process has once would bind it to the old one."""
    built = [builder.build(cpp("rms_norm", f"{COUNTING}// {text}\n", flags=(text,))) for text in ("-O2", "-O3")]
    first, second = (ctypes.CDLL(str(build.path)) for build in built)
    assert [first.gm_run(None), first.gm_run(None), second.gm_run(None), first.gm_run(None)] == [101, 202, 101, 303]


def test_another_compiler_is_another_key(builder, cpp, tmp_path):
    other = Builder(tmp_path)
    other.__dict__["compiler_version"] = "g++ 99"
    assert other.key(cpp("rms_norm", EMPTY)) != builder.key(cpp("rms_norm", EMPTY))


def test_failures_are_kept_and_name_candidate_paths_only(builder, cpp):
    candidate = cpp("rms_norm", '#include "parts/loop.h"\nint x = missing;\n')
    candidate = replace(candidate, files={**candidate.files, "parts/loop.h": "int y = absent;\n"})
    build = builder.build(candidate)
    assert build.path is None and not build.sha256
    assert "main.cpp:2" in build.log and "parts/loop.h:1" in build.log
    assert str(builder.cache) not in build.log
    assert builder.build(candidate).cached


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/hostname"',
        '#include "../../../../etc/hostname"',
        f'#include "{__file__}"',
        f'asm(".incbin \\"{__file__}\\"");',
        'asm(".incbin \\"/proc/self/environ\\"");',
    ],
)
def test_the_compiler_does_not_see_the_host(builder, cpp, text):
    build = builder.build(cpp("rms_norm", EMPTY + text + "\n"))
    assert build.path is None
    assert "No such file" in build.log or "not found" in build.log, build.log


def test_a_compiler_that_never_ends_is_ended(builder, cpp, monkeypatch):
    monkeypatch.setattr(builder_module, "BUILD_TIMEOUT_S", 1.0)
    endless = "template <int N> struct S { static const int v = S<N - 1>::v + S<N - 2>::v + S<N / 2>::v; };"
    text = EMPTY + "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i % 7; return s; }\n"
    text += "\n".join(f'static_assert(f({200000 + i}) > 0, "");' for i in range(500))
    build = builder.build(cpp("rms_norm", endless + text))
    assert build.path is None
    assert "did not finish" in build.log or "constexpr" in build.log


def test_flags_are_from_the_list():
    check_flags(("-ffast-math", "-mprefer-vector-width=512", "-funroll-loops", "-O2", "-fno-math-errno"))
    for flag in ("-fplugin=x", "-include/etc/passwd", "-wrapper", "@file", "-o/tmp/x", "-B/tmp"):
        with pytest.raises(FlagError, match="not allowed"):
            check_flags((flag,))


def test_no_compiler_is_a_clear_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompilerError, match="install"):
        Builder(tmp_path)


def test_a_cache_that_cannot_be_written_is_a_clear_fault(cpp, tmp_path):
    builder = Builder(tmp_path / "cache")
    builder.cache.rmdir()
    with pytest.raises(HostFaultError, match="build cache"):
        builder.build(cpp("rms_norm", EMPTY))


BIG = EMPTY + "__attribute__((used)) static char big[1 << 20] = {1};\n"
SLOW = EMPTY + "\n".join(
    ["constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i % 7; return s; }"]
    + [f'static_assert(f({200_000 + i}) > 0, "");' for i in range(4000)]
)


@pytest.mark.parametrize(
    ("text", "limits", "why"),
    [
        (BIG, {"file_bytes": 4096}, "files of that size"),
        (BIG, {"scratch_bytes": 400_000}, "no space is left"),
        (SLOW, {"cpu_s": 1}, "something ended the compiler"),
    ],
    ids=["file size", "full disk", "killed"],
)
def test_a_compiler_that_was_stopped_is_tried_again(builder, cpp, monkeypatch, text, limits, why):
    candidate = cpp("rms_norm", f"{text}// {why}\n")
    ample = builder_module.LIMITS
    monkeypatch.setattr(builder_module, "LIMITS", replace(ample, **limits))
    build = builder.build(candidate)
    assert build.path is None and build.errors.startswith("error: the compiler was stopped: ") and why in build.errors
    assert builder.find(candidate) is None
    monkeypatch.setattr(builder_module, "LIMITS", ample)
    if text is not SLOW:
        assert builder.build(candidate).path is not None


@pytest.mark.parametrize("end", [End(exit_code=2), End(signal_number=9), End()], ids=str)
def test_an_end_without_a_reason_is_not_kept_either(builder, cpp, monkeypatch, end):
    def run(sources, object_path, flags, background):
        object_path.touch()
        return end, "", ""

    candidate = cpp("rms_norm", f"{EMPTY}// {end}\n")
    monkeypatch.setattr(builder, "_run_compiler", run)
    build = builder.build(candidate)
    assert build.path is None and f"was stopped: it {end}, and may have run out of its 4 GiB or 20 s" in build.errors
    assert builder.find(candidate) is None


@pytest.mark.parametrize(
    "text",
    [
        "int x = missing;",
        '#include "absent.h"',
        "#error No space left on device",
        "#error File too large",
        'void f() { asm("frobnicate %eax"); }',
        "extern int elsewhere; GM_EXPORT int get() { return elsewhere; }",
        "GM_EXPORT int32_t gm_run(const gm_call *) { return 1; }",
    ],
)
def test_what_the_sources_are_to_blame_for_is_kept(builder, cpp, text):
    candidate = cpp("rms_norm", f"{EMPTY}{text}\n")
    assert builder.build(candidate).path is None
    assert builder.find(candidate) is not None


@pytest.mark.parametrize("name", ["x/y", "n" * 300, "main.cpp/z"])
def test_impossible_file_names_are_the_candidate_s_fault(builder, cpp, name):
    candidate = cpp("rms_norm", EMPTY)
    build = builder.build(replace(candidate, files={**candidate.files, "x": "", name: ""}))
    assert build.path is None and "cannot be used" in build.log


def test_the_pool_builds_ahead(builder, cpp):
    candidates = [cpp("rms_norm", EMPTY + f"// {number}\n") for number in range(3)]
    with BuildPool(builder, workers=2) as pool:
        futures = [pool.submit(candidate) for candidate in candidates]
        built = [future.result() for future in futures]
    assert all(build.path is not None for build in built)
    assert not list(builder.cache.glob("build-*"))
