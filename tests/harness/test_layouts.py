"""Layouts through the judge: kernels that honour strides pass everywhere, and those that take one for granted do not.

Shape suffixes: T tokens, H hidden.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import pytest
import torch

from gristmill.domain import Domain, Layout
from gristmill.workload import TensorLayout
from harness import comparer
from harness.draws import Draws
from kernels import catalogue, inputs, layouts
from kernels.candidate import Candidate, Language, Origin
from kernels.definition import DTYPES, Definition
from kernels.verdict import Status

FRAME = """
#include <cmath>
#include "gristmill_kernel.h"

static float at(const gm_tensor &t, int64_t i, int64_t j = 0, int64_t k = 0) {
  const int64_t place = i * t.stride[0] + j * t.stride[1] + k * t.stride[2];
  return ((const float *)t.data)[place];
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  gm_tensor in[4];
  for (int i = 0; i < INPUTS; i++) in[i] = call->inputs[i];
  float *const out = (float *)call->outputs[0].data;
  const int64_t rows = in[0].shape[0], width = in[0].shape[1];
  float sum = 0;
  (void)width, (void)sum;
  BODY
  return 0;
}
"""
BODIES = {
    "rms_norm": """
  for (int64_t t = 0; t < rows; t++) {
    sum = 0;
    for (int64_t h = 0; h < width; h++) sum += at(in[0], t, h) * at(in[0], t, h);
    const float scale = 1 / std::sqrt(sum / width + (float)call->scalars[0]);
    for (int64_t h = 0; h < width; h++) out[t * width + h] = at(in[0], t, h) * scale * at(in[1], h);
  }""",
    "fused_add_rms_norm": """
  float *const added = (float *)call->outputs[1].data;
  for (int64_t t = 0; t < rows; t++) {
    sum = 0;
    for (int64_t h = 0; h < width; h++) {
      added[t * width + h] = at(in[0], t, h) + at(in[1], t, h);
      sum += added[t * width + h] * added[t * width + h];
    }
    const float scale = 1 / std::sqrt(sum / width + (float)call->scalars[0]);
    for (int64_t h = 0; h < width; h++) out[t * width + h] = added[t * width + h] * scale * at(in[2], h);
  }""",
    "silu_and_mul": """
  for (int64_t t = 0; t < rows; t++)
    for (int64_t i = 0; i < width; i++)
      out[t * width + i] = at(in[0], t, i) / (1 + std::exp(-at(in[0], t, i))) * at(in[1], t, i);""",
    "rotary_embedding": """
  for (int which = 0; which < 2; which++) {
    const gm_tensor &x = in[which];
    float *to = (float *)call->outputs[which].data;
    const int64_t heads = x.shape[1], head_dim = x.shape[2], half = head_dim / 2;
    for (int64_t t = 0; t < rows; t++)
      for (int64_t n = 0; n < heads; n++)
        for (int64_t d = 0; d < head_dim; d++) {
          const float partner = d < half ? -at(x, t, n, d + half) : at(x, t, n, d - half);
          *to++ = at(x, t, n, d) * at(in[2], t, d) + partner * at(in[3], t, d);
        }
  }""",
    "softmax": """
  for (int64_t r = 0; r < rows; r++) {
    float largest = -INFINITY;
    for (int64_t c = 0; c < width; c++) largest = at(in[0], r, c) > largest ? at(in[0], r, c) : largest;
    sum = 0;
    for (int64_t c = 0; c < width; c++) sum += std::exp(at(in[0], r, c) - largest);
    for (int64_t c = 0; c < width; c++) out[r * width + c] = std::exp(at(in[0], r, c) - largest) / sum;
  }""",
    "skinny_linear": """
  const int64_t features = in[1].shape[0];
  for (int64_t t = 0; t < rows; t++)
    for (int64_t n = 0; n < features; n++) {
      sum = 0;
      for (int64_t k = 0; k < width; k++) sum += at(in[0], t, k) * at(in[1], n, k);
      out[t * features + n] = sum;
    }""",
}
"""A kernel per operator that reads every input through its strides."""
SUMMING = ("rms_norm", "fused_add_rms_norm", "softmax", "skinny_linear")
RIGHT = (Status.FASTER, Status.SLOWER)
WRONG = (Status.INCORRECT, Status.CRASHED)


def kernel(definition: Definition) -> str:
    return FRAME.replace("INPUTS", str(len(definition.inputs))).replace("BODY", BODIES[definition.name])


def candidate(definition: Definition, text: str, layout: Layout = Layout.ANY) -> Candidate:
    domain = Domain(definition.name, "float32", layout=layout)
    return Candidate(definition.name, Language.CPP, {"main.cpp": text}, domain, Origin("test"))


def captured(definition: Definition):
    """A dense call and one with every input as a fused projection has it."""
    dense = inputs.workload(definition, "float32", **definition.edge_axes[3])
    strided = [
        dataclasses.replace(tensor, strides=(2 * tensor.strides[0], *tensor.strides[1:]))
        if len(tensor.shape) > 1
        else tensor
        for tensor in dense.inputs
    ]
    return [dense, dataclasses.replace(dense, inputs=tuple(strided))]


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_a_kernel_that_honours_all_strides_is_right_in_every_layout(judge, name):
    definition = catalogue.operator(name)
    verdict = judge.judge(candidate(definition, kernel(definition)), captured(definition))
    assert verdict.status in RIGHT, verdict.reason
    assert len({timing.workload.label for timing in verdict.timings}) == 2


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_a_kernel_that_takes_rows_for_dense_is_convicted(judge, name):
    """Of its last matrix only: the others are read as they should be."""
    definition = catalogue.operator(name)
    position = max(i for i, spec in enumerate(definition.inputs) if len(spec.dims) > 1)
    sizes = " * ".join(f"in[{position}].shape[{dim}]" for dim in range(1, len(definition.inputs[position].dims)))
    text = kernel(definition).replace("float *const out", f"in[{position}].stride[0] = {sizes};\n  float *const out")
    verdict = judge.judge(candidate(definition, text, Layout.INNER_CONTIGUOUS), captured(definition)[:1])
    assert verdict.status in WRONG, verdict.reason
    assert "strides" in verdict.reason or verdict.status is Status.CRASHED


@pytest.mark.parametrize("name", SUMMING)
def test_a_kernel_that_lets_one_row_spoil_the_next_is_convicted(judge, name):
    """Nothing but NaN or infinity shows it: zero times anything else is zero."""
    definition = catalogue.operator(name)
    text = (
        kernel(definition)
        .replace("sum = 0;\n    for", "sum *= 0;\n    for")
        .replace("sum = 0;\n      for", "sum *= 0;\n      for")
    )
    assert text != kernel(definition)
    verdict = judge.judge(candidate(definition, text, Layout.CONTIGUOUS), captured(definition)[:1])
    assert verdict.status is Status.INCORRECT, verdict.reason
    assert "nonfinite" in verdict.reason


@functools.cache
def edge_draws(name: str, dtype: str) -> list[tuple[Draws, tuple[torch.Tensor, ...]]]:
    definition = catalogue.operator(name)
    edges = inputs.edge_workloads(definition, dtype, Domain(name, dtype, layout=Layout.ANY))
    small = [edge for edge in edges if sum(math.prod(tensor.shape) for tensor in edge.inputs) < 20_000]
    generator = torch.Generator().manual_seed(1)
    first = definition.regimes[0]
    return [
        (Draws(definition, edge, first, 5), inputs.materialise(definition, edge, first, generator)) for edge in small
    ]


def misread(tensor: torch.Tensor, dim: int) -> torch.Tensor | None:
    """The tensor as a kernel sees it that takes one dimension for dense; None where that leaves its memory."""
    strides = [*tensor.stride()]
    strides[dim] = math.prod(tensor.shape[dim + 1 :])
    reached = layouts.span(TensorLayout(tuple(tensor.shape), tuple(strides), "float32"))
    if reached * tensor.element_size() > tensor.untyped_storage().nbytes():
        return None
    return tensor.as_strided(tensor.shape, strides)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_stride_of_every_input_is_needed_by_some_edge(name: str, dtype: str) -> None:
    """The engine's own kernel, misreading one dimension of one input, is rejected at an edge."""
    definition = catalogue.operator(name)
    scalars = tuple(scalar.default for scalar in definition.scalars)
    for position, spec in enumerate(definition.inputs):
        for dim in range(len(spec.dims)):
            assert any(caught(draws, tensors, position, dim, scalars) for draws, tensors in edge_draws(name, dtype)), (
                spec.name,
                dim,
            )


def caught(
    draws: Draws, tensors: tuple[torch.Tensor, ...], position: int, dim: int, scalars: tuple[float, ...]
) -> bool:
    seen = misread(tensors[position], dim)
    if seen is None:
        return True
    outputs = draws.definition.baselines["eager"](*tensors[:position], seen, *tensors[position + 1 :], *scalars)
    expected = draws.expected([tensor[None] for tensor in tensors])
    return any(
        comparer.compare(output[None], wanted, facts, workload="w", output="o") is not None
        for output, wanted, facts in zip(outputs, expected, draws.facts, strict=True)
    )


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_the_engine_s_own_kernel_is_accepted_at_every_edge(name: str) -> None:
    definition = catalogue.operator(name)
    scalars = tuple(scalar.default for scalar in definition.scalars)
    for (draws, tensors), index in itertools.product(edge_draws(name, "float32"), range(len(definition.outputs))):
        output = definition.baselines["eager"](*tensors, *scalars)[index]
        wanted = draws.expected([tensor[None] for tensor in tensors])[index]
        assert comparer.compare(output[None], wanted, draws.facts[index], workload="w", output="o") is None


@pytest.mark.parametrize("name", ["rms_norm", "rotary_embedding", "skinny_linear"])
def test_an_index_of_32_bits_is_convicted_where_rows_lie_far_apart(judge, name):
    definition = catalogue.operator(name)
    text = kernel(definition).replace("const int64_t place =", "const int32_t place =")
    assert text != kernel(definition)
    verdict = judge.judge(candidate(definition, text, Layout.INNER_CONTIGUOUS), captured(definition)[:1])
    assert verdict.status in WRONG, verdict.reason
