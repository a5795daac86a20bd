"""Fused programs before the real judge, and the roundings that it would convict them of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from agents.pattern_source import Target
from agents.sources import catalogue
from gristmill.domain import AxisRange
from gristmill.hardware import local_cpu
from gristmill.native import NativeKernel
from harness.judge import Judge
from harness.policy import screening
from kernels import catalogue as operators
from kernels import inputs
from kernels.candidate import Candidate
from kernels.roofline import Peaks
from kernels.verdict import Status

GATED = "skinny_linear-skinny_linear+silu_and_mul"
RATES = {"float32": 1e6, "bfloat16": 1e6}
SEED = 7
Compile = Callable[[Sequence[Candidate], str], list[NativeKernel]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    peaks = Peaks(
        *(local_cpu().key, 2, 1e6, 1e6, 1e6, RATES, RATES),
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        l3_bytes=32 << 20,
    )
    with Judge(tmp_path_factory.mktemp("judge"), screening(), peaks, device="fused-test") as made:
        yield made


def candidate_for(operator: str, dtype: str, most_tokens: int = 8) -> Candidate:
    """The first that a pattern agent would propose."""
    (source,) = catalogue.sources_for(operator, dtype)
    target = Target(local_cpu(), 2, dtype, AxisRange(source.varying_axis, 1, most_tokens))
    return source.candidate(target, source.defaults(target)[0], "test")


@pytest.mark.parametrize(
    ("operator", "dtype", "axes"),
    [
        (GATED, "bfloat16", {"tokens": 2, "in_features": 96, "out_features": 70}),
        ("silu_and_mul+rms_norm", "float32", {"tokens": 3, "intermediate": 70}),
    ],
)
def test_the_judge_finds_a_fused_program_right(judge: Judge, operator: str, dtype: str, axes: dict[str, int]) -> None:
    workload = inputs.workload(operators.operator(operator), dtype, **axes)
    verdict = judge.judge(candidate_for(operator, dtype), [workload], seed=SEED)
    assert verdict.status in (Status.FASTER, Status.SLOWER), verdict.reason
    assert [timing.workload for timing in verdict.timings] == [workload]


def test_what_silu_makes_much_of_is_not_rounded_before(compile_candidates: Compile) -> None:
    """A gate of about -62, rounded to bfloat16, may be off by an eighth, and so is what silu makes of it. Whether the
    product is an output too makes no difference.
    """
    x_TK = torch.tensor([[7.875, 0.125]]).bfloat16()
    gate_NK, up_NK = torch.tensor([[-7.875, -0.53125]]).bfloat16(), torch.tensor([[1.0, 0.0]]).bfloat16()
    gate = x_TK.double() @ gate_NK.double().T
    right = float(gate * torch.sigmoid(gate) * 7.875)
    rounded = gate.bfloat16().double()
    assert abs(float(rounded * torch.sigmoid(rounded) * 7.875) / right - 1) > 0.05, "rounding it first shows"
    hidden, kept = compile_candidates(
        [candidate_for(name, "bfloat16") for name in (GATED, GATED.replace("+", "++"))], "native"
    )
    outputs = [torch.empty(1, 1).bfloat16() for _ in range(3)]
    assert hidden.run((x_TK, gate_NK, up_NK), (), outputs[:1]) == 0
    assert abs(outputs[0].item() / right - 1) < 2.0**-7
    assert kept.run((x_TK, gate_NK, up_NK), (), outputs) == 0
    assert abs(outputs[0].item() / right - 1) < 2.0**-7
    assert [output.item() for output in outputs[1:]] == [rounded.item(), 7.875]


def test_a_softmax_takes_its_row_as_it_is_made(compile_candidates: Compile) -> None:
    """Sums of about 200 are rounded to whole numbers in bfloat16, and softmax tells them apart far better."""
    x_RC, residual_RC = torch.tensor([[200.0, 200.0, 196.0]]).bfloat16(), torch.tensor([[0.5, 0.0, 2.0]]).bfloat16()
    (kernel,) = compile_candidates([candidate_for("residual_add+softmax", "bfloat16")], "native")
    out_RC = torch.empty_like(x_RC)
    assert kernel.run((x_RC, residual_RC), (), (out_RC,)) == 0
    torch.testing.assert_close(out_RC, torch.softmax(x_RC.double() + residual_RC.double(), -1).bfloat16())
