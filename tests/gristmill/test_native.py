"""The ctypes mirror calls real kernels and refuses what is none."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gristmill.errors import NativeKernelError
from gristmill.native import PACKED_ALIGNMENT_BYTES, GmCall, GmTensor, NativeKernel, layout_of

Compile = Callable[..., Path]


def expected_norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x_TH, (x_TH.shape[1],), weight_H, eps)


def test_structs_have_the_size_of_the_header(tmp_path: Path, compile_kernel: Compile) -> None:
    assert ctypes.sizeof(GmTensor) == 80
    assert ctypes.sizeof(GmCall) == 32


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 1), (1, 64), (3, 17), (64, 5)])
def test_run_fills_outputs(compile_kernel: Compile, tokens: int, hidden: int) -> None:
    kernel = NativeKernel(compile_kernel("rms_norm"), needs_setup=False)
    x_TH, weight_H = torch.randn(tokens, hidden), torch.randn(hidden)
    out_TH = torch.full((tokens, hidden), float("nan"))
    assert kernel.run((x_TH, weight_H), (1e-5,), (out_TH,)) == 0
    torch.testing.assert_close(out_TH, expected_norm(x_TH, weight_H, 1e-5))


def test_strides_reach_the_kernel(compile_kernel: Compile) -> None:
    kernel = NativeKernel(compile_kernel("rms_norm"), needs_setup=False)
    wide_TH, weight_H = torch.randn(4, 20), torch.randn(8)
    x_TH, out_TH = wide_TH[:, 5:13], torch.empty(4, 8)
    assert kernel.run((x_TH, weight_H), (1e-6,), (out_TH,)) == 0
    torch.testing.assert_close(out_TH, expected_norm(x_TH, weight_H, 1e-6))


def test_scalars_are_part_of_a_frame(compile_kernel: Compile) -> None:
    kernel = NativeKernel(compile_kernel("rms_norm"), needs_setup=False)
    x_TH, weight_H, out_TH = torch.randn(2, 4), torch.ones(4), torch.empty(2, 4)
    for eps in (1e-6, 10.0):
        kernel.run((x_TH, weight_H), (eps,), (out_TH,))
        torch.testing.assert_close(out_TH, expected_norm(x_TH, weight_H, eps))


def test_refusal_is_returned(compile_kernel: Compile) -> None:
    kernel = NativeKernel(compile_kernel("rms_norm", "REFUSE_AFTER=0"), needs_setup=False)
    assert kernel.run((torch.ones(1, 4), torch.ones(4)), (1e-6,), (torch.empty(1, 4),)) == 7


def test_threads_do_not_share_pointers(compile_kernel: Compile) -> None:
    kernel = NativeKernel(compile_kernel("rms_norm"), needs_setup=False)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x_TH, weight_H = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)), torch.ones(64)
        wanted_TH = expected_norm(x_TH, weight_H, 1e-6)
        for _ in range(300):
            out_TH = torch.zeros(8, 64)
            kernel.run((x_TH, weight_H), (1e-6,), (out_TH,))
            if not torch.allclose(out_TH, wanted_TH, rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_setup_packs_an_aligned_buffer(compile_kernel: Compile) -> None:
    kernel = NativeKernel(compile_kernel("skinny_linear"), needs_setup=True)
    x_TK, weight_NK, out_TN = torch.randn(3, 6), torch.randn(5, 6), torch.empty(3, 5)
    packed = kernel.setup([layout_of(x_TK), layout_of(weight_NK)], [layout_of(out_TN)], (), 1, weight_NK)
    assert packed.data_ptr() % PACKED_ALIGNMENT_BYTES == 0
    assert packed.numel() == weight_NK.numel() * 4
    assert kernel.run((x_TK, weight_NK), (), (out_TN,)) == 9
    assert kernel.run((x_TK, weight_NK), (), (out_TN,), packed) == 0
    torch.testing.assert_close(out_TN, x_TK @ weight_NK.T)


def test_what_is_no_kernel_is_refused(compile_kernel: Compile, tmp_path: Path) -> None:
    with pytest.raises(NativeKernelError, match="exports no gm_run"):
        NativeKernel(compile_kernel("empty"), needs_setup=False)
    with pytest.raises(NativeKernelError, match="exports no gm_packed_bytes"):
        NativeKernel(compile_kernel("rms_norm"), needs_setup=True)
    garbage = tmp_path / "garbage.so"
    garbage.write_bytes(b"not an object")
    with pytest.raises(NativeKernelError, match="cannot be loaded"):
        NativeKernel(garbage, needs_setup=False)


def test_unknown_types_are_refused(compile_kernel: Compile) -> None:
    kernel = NativeKernel(compile_kernel("rms_norm"), needs_setup=False)
    with pytest.raises(NativeKernelError, match="float16"):
        kernel.run((torch.ones(1, 4).half(), torch.ones(4)), (1e-6,), (torch.empty(1, 4),))
