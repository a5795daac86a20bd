from __future__ import annotations

import shutil

import pytest
import torch

from kernels import catalogue, inputs
from kernels.torch_compile import compiled_baseline

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the PATH")

NORM = catalogue.operator("rms_norm")


def _inputs(tokens: int) -> tuple[torch.Tensor, ...]:
    workload = inputs.workload(NORM, "float32", tokens=tokens, hidden=64)
    return inputs.materialise(NORM, workload, "traffic", torch.Generator().manual_seed(0))


def _graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_it_is_compiled_before_the_first_timed_call_and_right() -> None:
    workload = inputs.workload(NORM, "float32", tokens=4, hidden=64)
    before = _graphs()
    compiled = compiled_baseline(NORM, "float32", workload)
    after = _graphs()
    assert after == before + 1
    tensors = _inputs(4)
    with torch.inference_mode():
        (found,) = compiled(*tensors, 1e-6)
    (expected,) = NORM.baselines["eager"](*tensors, 1e-6)
    torch.testing.assert_close(found, expected)
    assert _graphs() == after


def test_without_a_workload_one_graph_serves_other_extents() -> None:
    compiled = compiled_baseline(NORM, "float32")
    after = _graphs()
    for tokens in (3, 9):
        tensors = _inputs(tokens)
        with torch.inference_mode():
            torch.testing.assert_close(compiled(*tensors, 1e-6)[0], NORM.baselines["eager"](*tensors, 1e-6)[0])
    assert _graphs() == after
