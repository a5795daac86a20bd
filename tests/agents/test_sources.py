"""Every source, in every dtype and over a sample of its parameters, is right where kernels break: at one element, odd
and prime sizes, one past a vector, rows with gaps, and every regime of the definition.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from agents.parameter_space import Values
from agents.pattern_source import PatternSource, Target
from agents.sources import catalogue, skinny_linear
from gristmill.domain import AxisRange, Domain, Layout
from gristmill.hardware import Hardware, describe_cpu, local_cpu
from gristmill.native import NativeKernel, layout_of
from gristmill.workload import TensorLayout, Workload
from kernels import catalogue as operators
from kernels import inputs
from kernels.candidate import Candidate
from kernels.definition import Definition, Role

Compile = Callable[[Sequence[Candidate], str], list[NativeKernel]]

SAMPLES = 1
"""Random combinations per source and dtype; the first default is tried in float32."""
EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
ALLOWED_ROUNDINGS = {"float32": 24, "bfloat16": 5}
"""Of the error scale: sums of a few thousand terms in vectors round a few times each."""
ENGINE_ERRORS = 1.5
"""Of the engine's own, where it is off by more: squares of what is huge overflow in float32."""
LOWERED = ("PARALLEL_FROM", "SERIAL_BELOW_KIB")
"""Thresholds that are sampled at their least, so that test sizes wake threads."""
GUARD = 64
POISON = -12345.0
CASES = [(pattern, dtype) for pattern in catalogue.SOURCES for dtype in pattern.dtypes]
FUSED = (
    ("residual_add++rms_norm-softmax", "float32"),
    ("silu_and_mul+rms_norm", "bfloat16"),
    ("fused_add_rms_norm+skinny_linear-skinny_linear", "bfloat16"),
    ("skinny_linear-skinny_linear+silu_and_mul+skinny_linear", "float32"),
)
"""A value that two ask for, one kept in an output's memory, products that wait for rows and rows that wait for them."""
CASES += [(source, dtype) for name, dtype in FUSED for source in catalogue.sources_for(name, dtype)]


def name_of(case: object) -> str:
    return f"{case.operator}-{case.name}" if isinstance(case, PatternSource) else str(case)


def target_for(pattern: PatternSource, dtype: str, low: int = 1, high: int = 1 << 20, cores: int = 2) -> Target:
    return Target(local_cpu(), cores, dtype, AxisRange(pattern.varying_axis, low, high))


def sampled(pattern: PatternSource, target: Target) -> list[Values]:
    random_source = random.Random(f"{pattern.operator} {pattern.name} {target.dtype}")
    space = pattern.space(target)
    wanted = [pattern.defaults(target)[0]] if target.dtype == "float32" else []
    for _ in range(SAMPLES):
        values = space.sample(random_source)
        wanted.append({**values, **{p.name: min(p.choices) for p in space.parameters if p.name in LOWERED}})
    return wanted


def odd_workloads(definition: Definition, dtype: str) -> list[Workload]:
    """Sizes around vectors and token blocks."""
    varying = next(axis for axis in definition.axes if axis not in definition.constant_axes)
    model = {"hidden": 129, "intermediate": 1031, "in_features": 321, "out_features": 201, "query_heads": 3}
    model |= {"key_heads": 1, "head_dim": 40, "columns": 263}
    sizes = [{axis: model.get(axis, 1) for axis in definition.axes} | {varying: n} for n in (1, 2, 3, 5, 7, 13, 37)]
    return [inputs.workload(definition, dtype, **axes) for axes in sizes]


def edges(definition: Definition, dtype: str) -> list[Workload]:
    """What the judge tries on a domain that leaves all sizes open: contiguous rows in every layout, and far apart."""
    domain = Domain(definition.name, dtype, layout=Layout.INNER_CONTIGUOUS)
    far = inputs.far_workload(definition, dtype, domain)
    assert far is not None
    return [*inputs.edge_workloads(definition, dtype, domain), far]


def with_gaps(workload: Workload) -> Workload:
    """The same call on rows that lie apart, as slices of a fused projection do; rank 1 stays dense."""
    layouts = []
    for layout in workload.inputs:
        strides = list(layout.strides)
        if len(strides) > 1:
            strides[0] += 5
        layouts.append(TensorLayout(layout.shape, tuple(strides), layout.dtype))
    return Workload(workload.operator, workload.dtype, workload.axes, tuple(layouts))


def check(kernel: NativeKernel, definition: Definition, workload: Workload, regime: str, seed: int) -> None:
    """Compares with the float64 reference, within roundings of the condition or a few times what the engine is off by,
    and looks at the guards.
    """
    tensors = inputs.materialise(definition, workload, regime, torch.Generator().manual_seed(seed))
    before = [tensor.clone() for tensor in tensors]
    scalars = tuple(scalar.default for scalar in definition.scalars)
    exact = [tensor.double() for tensor in tensors]
    expected = definition.reference(*exact, *scalars)
    scales = definition.error_scale(*exact, *scalars)
    buffers = [torch.full((e.numel() + 2 * GUARD,), POISON, dtype=tensors[0].dtype) for e in expected]
    outputs = [b[GUARD : GUARD + e.numel()].view(e.shape) for b, e in zip(buffers, expected, strict=True)]
    packed = pack(kernel, definition, tensors, outputs, scalars) if kernel.needs_setup else None
    assert kernel.run(tensors, scalars, outputs, packed) == 0, workload.label
    allowed = ALLOWED_ROUNDINGS[workload.dtype] * EPSILON[workload.dtype]
    engine = definition.baselines["eager"](*tensors, *scalars)
    for found, wanted, scale, buffer, eager in zip(outputs, expected, scales, buffers, engine, strict=True):
        error = (found.double() - wanted).abs()
        tiny = torch.finfo(found.dtype).tiny
        alike = (found == wanted) | (found.isnan() & wanted.isnan())
        engine_error = (eager.double() - wanted).abs()
        room = torch.maximum(allowed * torch.maximum(scale, wanted.abs()), ENGINE_ERRORS * engine_error)
        assert bool((alike | (error <= room + tiny)).all()), (
            f"{workload.label} {regime}: error {(error / scale).max() / EPSILON[workload.dtype]:.1f} roundings"
        )
        guards = torch.cat((buffer[:GUARD], buffer[-GUARD:]))
        assert bool((guards == guards[0]).all()), f"{workload.label}: wrote outside its output"
    for tensor, copy in zip(tensors, before, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)


def pack(
    kernel: NativeKernel,
    definition: Definition,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    scalars: Sequence[float],
) -> torch.Tensor:
    index = next(i for i, spec in enumerate(definition.inputs) if spec.role is Role.WEIGHT)
    return kernel.setup([*map(layout_of, tensors)], [*map(layout_of, outputs)], scalars, index, tensors[index])


@pytest.mark.parametrize(("pattern", "dtype"), CASES, ids=name_of)
def test_right_at_the_edges(pattern: PatternSource, dtype: str, compile_candidates: Compile) -> None:
    definition = operators.operator(pattern.operator)
    target = target_for(pattern, dtype)
    candidates = [pattern.candidate(target, values, "test") for values in sampled(pattern, target)]
    for kernel in compile_candidates(candidates, "native"):
        for seed, workload in enumerate(edges(definition, dtype)):
            for regime in {definition.regimes[seed % len(definition.regimes)], definition.regimes[-1]}:
                check(kernel, definition, workload, regime, seed)
        for seed, workload in enumerate(odd_workloads(definition, dtype)):
            check(kernel, definition, workload, definition.regimes[seed % len(definition.regimes)], seed)
            check(kernel, definition, with_gaps(workload), "traffic", seed)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the narrowest x86 target is x86's own")
def test_right_without_wide_vectors(compile_candidates: Compile) -> None:
    """The path of every machine without AVX: vectors of 16 bytes, no fused multiply-add, no intrinsics."""
    hardware = describe_cpu("vendor_id: test\n", "x86_64", 2)
    targets = [Target(hardware, 2, "bfloat16", AxisRange(p.varying_axis, 1, 1 << 20)) for p in catalogue.SOURCES]
    pairs = zip(catalogue.SOURCES, targets, strict=True)
    candidates = [p.candidate(target, p.defaults(target)[0], "test") for p, target in pairs]
    assert {c.origin.parameters["LANES"] for c in candidates} == {"4"}
    kernels = compile_candidates(candidates, "x86-64")
    for pattern, kernel in zip(catalogue.SOURCES, kernels, strict=True):
        definition = operators.operator(pattern.operator)
        for seed, workload in enumerate(odd_workloads(definition, "bfloat16") + edges(definition, "bfloat16")):
            check(kernel, definition, workload, "traffic", seed)


@pytest.mark.parametrize("pattern", [p for p in catalogue.SOURCES if p.operator == "skinny_linear"], ids=name_of)
@pytest.mark.parametrize(("low", "high"), [(1, 1), (5, 8)])
def test_a_specialist_refuses_other_token_counts(
    pattern: PatternSource, low: int, high: int, compile_candidates: Compile
) -> None:
    definition = operators.operator(pattern.operator)
    target = target_for(pattern, "float32", low, high)
    (kernel,) = compile_candidates([pattern.candidate(target, pattern.defaults(target)[0], "test")], "native")
    for tokens in range(low, high + 1):
        workload = inputs.workload(definition, "float32", tokens=tokens, in_features=100, out_features=70)
        check(kernel, definition, workload, "traffic", tokens)
    x_TK, weight_NK = torch.randn(high + 1, 100), torch.randn(70, 100)
    out_TN = torch.full((high + 1, 70), POISON)
    packed = pack(kernel, definition, (x_TK, weight_NK), (out_TN,), ()) if kernel.needs_setup else None
    assert kernel.run((x_TK, weight_NK), (), (out_TN,), packed) != 0
    assert bool((out_TN == POISON).all())


def test_exponential_is_accurate_and_keeps_special_values(compile_candidates: Compile) -> None:
    """silu(g) * 1 with g from -88 to 88: both ends of exp, and what lies past them."""
    pattern = next(p for p in catalogue.SOURCES if p.operator == "silu_and_mul")
    target = target_for(pattern, "float32")
    (kernel,) = compile_candidates([pattern.candidate(target, pattern.defaults(target)[0], "test")], "native")
    special = torch.tensor([float("nan"), float("inf"), -200.0, 200.0, -0.0])
    gate_TI = torch.cat((torch.linspace(-87, 87, 20001), special)).unsqueeze(0)
    up_TI, out_TI = torch.ones_like(gate_TI), torch.empty_like(gate_TI)
    assert kernel.run((gate_TI, up_TI), (), (out_TI,)) == 0
    exact = gate_TI.double() * torch.sigmoid(gate_TI.double())
    relative = ((out_TI.double() - exact) / exact)[0, :20001].nan_to_num(0.0).abs()
    assert relative.max().item() < 3 * 2.0**-24
    assert torch.isnan(out_TI[0, -5])
    assert out_TI[0, -4:].tolist() == [float("inf"), 0.0, 200.0, 0.0]


@pytest.mark.parametrize("pattern", [p for p in catalogue.SOURCES if p.operator == "softmax"], ids=name_of)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_softmax_of_masked_rows(pattern: PatternSource, dtype: str, compile_candidates: Compile) -> None:
    """Several blocks, and threads woken: a maximum that grows late, parts and rows with nothing but masked columns."""
    target = target_for(pattern, dtype)
    lowered = {p.name: min(p.choices) for p in pattern.space(target).parameters if p.name in (*LOWERED, "BLOCK")}
    candidate = pattern.candidate(target, {**pattern.defaults(target)[0], **lowered}, "test")
    (kernel,) = compile_candidates([candidate], "native")
    x_RC = torch.randn(6, 2077)
    x_RC[0, 5:] = float("-inf")
    x_RC[1, :] = float("-inf")
    x_RC[2, 1803] = float("nan")
    x_RC[3, ::2] = float("-inf")
    x_RC[4, :1500] = float("-inf")
    x_RC[5, 1500:] += 200.0
    x_RC = x_RC.to(getattr(torch, dtype))
    for rows in (x_RC, *x_RC.split(1), x_RC[:, :77].contiguous()):
        out_RC = torch.empty_like(rows)
        assert kernel.run((rows,), (), (out_RC,)) == 0
        expected_RC = torch.softmax(rows.float(), -1).to(rows.dtype)
        torch.testing.assert_close(out_RC, expected_RC, equal_nan=True)


def test_combinations_that_use_the_dot_product_units_say_so() -> None:
    units = Hardware("x86_64-test-avx512_bf16", "test", 2, ("avx2", "fma", "avx512f", "avx512_bf16"))
    for hardware, dtype, lanes, technique in [
        (units, "bfloat16", 16, "bf16-dot-products"),
        (units, "bfloat16", 8, "register-blocking"),
        (units, "float32", 16, "register-blocking"),
        (Hardware("x86_64-test-avx512f", "test", 2, ("avx512f",)), "bfloat16", 16, "register-blocking"),
    ]:
        target = Target(hardware, 2, dtype, AxisRange("tokens", 1, 4))
        values = {**skinny_linear.ROWS.defaults(target)[0], "LANES": lanes}
        assert skinny_linear.ROWS.candidate(target, values, "test").origin.pattern == technique
