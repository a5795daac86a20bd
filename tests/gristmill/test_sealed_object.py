"""What was hashed is what runs, whatever happens to the file before, while and after it is loaded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gristmill import durable_file, sealed_object
from gristmill.dispatch import Dispatcher
from gristmill.errors import NativeKernelError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.native import NativeKernel
from gristmill.records import sha256_hex

Compile = Callable[..., Path]
WEIGHT_H = torch.ones(64)
CHANGES_ARITHMETIC = r"""
#include <immintrin.h>
#ifdef ROUNDS_AT_LOAD
__attribute__((constructor)) static void round_down() { _mm_setcsr(_mm_getcsr() | 0x6000); }
#endif
int nothing;
"""
READS_ARITHMETIC = r"""
#include <immintrin.h>
extern "C" unsigned control() { return _mm_getcsr() & ~0x3Fu; }
extern "C" void restore(unsigned word) { _mm_setcsr(word); }
"""


def first_row(kernel: NativeKernel) -> torch.Tensor:
    out_TH = torch.empty(1, 64)
    assert kernel.run((torch.ones(1, 64), WEIGHT_H), (0.0,), (out_TH,)) == 0
    return out_TH[0]


def mapped(digest: str) -> list[str]:
    return re.findall(rf"/memfd:gristmill-{digest[:12]}.*", Path("/proc/self/maps").read_text())


def test_a_file_that_is_written_over_changes_nothing(compile_kernel: Compile) -> None:
    path, wrong = compile_kernel("rms_norm"), compile_kernel("rms_norm", "WRONG_AFTER=0")
    digest = sha256_hex(path.read_bytes())
    kernel = NativeKernel(path, False, digest)
    with path.open("r+b") as file:
        file.write(wrong.read_bytes())
        file.truncate(0)
    torch.testing.assert_close(first_row(kernel), WEIGHT_H)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert mapped(digest)


def test_a_file_that_is_exchanged_once_it_was_read_is_not_loaded(
    compile_kernel: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wrong = compile_kernel("rms_norm"), compile_kernel("rms_norm", "WRONG_AFTER=0")
    read = durable_file.read

    def read_and_exchange(at: Path) -> bytes:
        content = read(at)
        wrong.replace(path)
        return content

    monkeypatch.setattr(durable_file, "read", read_and_exchange)
    digest = sha256_hex(path.read_bytes())
    torch.testing.assert_close(first_row(NativeKernel(path, False, digest)), WEIGHT_H)


def test_what_is_loaded_can_be_written_by_nobody(compile_kernel: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[type[Exception]] = []

    class Thief(ctypes.CDLL):
        def __init__(self, path: str) -> None:
            descriptor = os.open(path, os.O_RDWR)
            for change in (lambda: os.pwrite(descriptor, b"!", 0), lambda: os.ftruncate(descriptor, 0)):
                with pytest.raises(PermissionError) as refused:
                    change()
                tried.append(refused.type)
            os.close(descriptor)
            super().__init__(path)

    monkeypatch.setattr(ctypes, "CDLL", Thief)
    sealed_object.load(compile_kernel("rms_norm"))
    assert tried == [PermissionError, PermissionError]


def test_objects_one_after_the_other_are_different_ones(compile_kernel: Compile) -> None:
    """The loader knows libraries by path, and the descriptor's number is the same each time."""
    right, wrong = compile_kernel("rms_norm"), compile_kernel("rms_norm", "WRONG_AFTER=0")
    torch.testing.assert_close(first_row(NativeKernel(right, False)), WEIGHT_H)
    assert first_row(NativeKernel(wrong, False))[-1] == 3
    paths = [sealed_object._path(7, number) for number in range(2000)]
    assert len(set(paths)) == len(paths)
    assert {os.path.normpath(path) for path in paths} == {"/proc/self/fd/7"}
    assert max(map(len, paths)) < 100


def test_swaps_take_no_descriptors_and_map_an_object_once(
    make_entry: Callable[..., tuple[TableEntry, Path]], make_generation: Callable[..., Generation]
) -> None:
    dispatcher = Dispatcher(environ={})
    dispatcher.site("rms_norm", torch.float32, {"hidden": 8}, (1e-5,), lambda x, w, e: (torch.rms_norm(x, (8,), w, e),))
    one, other = make_entry("rms_norm", 1, 8), make_entry("rms_norm", 1, 8)
    for number in range(1, 101):
        assert dispatcher.stage(make_generation(number, one if number % 2 else other)) == ()
        assert dispatcher.step_boundary() is not None
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, by another thread
            assert "gristmill-" not in str(descriptor.readlink())
    digest = one[0].object.sha256
    starts = re.findall(rf" 00000000 \S+ \d+ +/memfd:gristmill-{digest[:12]}", Path("/proc/self/maps").read_text())
    assert len(starts) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="uses the control word of x86_64")
@pytest.mark.parametrize("flags", [("-ffast-math",), ("-DROUNDS_AT_LOAD",)], ids=["fast-math", "rounding"])
def test_loading_leaves_the_arithmetic_of_its_thread_as_it_was(flags: tuple[str, ...], tmp_path: Path) -> None:
    """GCC before 13 links a start-up object into libraries of `-ffast-math` that flushes denormal numbers."""
    source, target = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text(CHANGES_ARITHMETIC)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", *flags, "-o", str(target), str(source)], check=True)
    reader = ctypes.CDLL(str(_built_reader(tmp_path)))
    before = reader.control()
    sealed_object.load(target)
    after = reader.control()
    reader.restore(before)
    assert after == before
    assert torch.tensor([1e-40]).mul(2.0).item() > 0


def _built_reader(folder: Path) -> Path:
    source, target = folder / "reader.cpp", folder / "reader.so"
    source.write_text(READS_ARITHMETIC)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return target


@pytest.mark.parametrize("spoil", ["other bytes", "gone", "folder", "pipe", "link"])
def test_what_is_not_the_file_that_was_verified_is_refused(compile_kernel: Compile, spoil: str) -> None:
    path = compile_kernel("rms_norm")
    digest, content = sha256_hex(path.read_bytes()), path.read_bytes()
    path.unlink()
    if spoil == "other bytes":
        path.write_bytes(content + b"!")
    elif spoil == "folder":
        path.mkdir()
    elif spoil == "pipe":
        os.mkfifo(path)
    elif spoil == "link":
        path.with_suffix(".elsewhere").write_bytes(content)
        path.symlink_to(path.with_suffix(".elsewhere"))
    with pytest.raises(NativeKernelError, match="restart the host to fetch it again"):
        sealed_object.load(path, digest)


def test_a_host_that_forbids_sealed_code_says_so(compile_kernel: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    with pytest.raises(NativeKernelError, match="forbids code in sealed memory"):
        sealed_object.load(compile_kernel("rms_norm"))
