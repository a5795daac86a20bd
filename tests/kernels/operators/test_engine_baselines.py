"""Eager baselines are what transformers' Llama executes, bit for bit.

Shape suffixes: T tokens, H hidden, I intermediate, N query heads, M key heads, D head dimension, R rows, C columns.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kernels import catalogue, inputs
from kernels.definition import DTYPES

llama = pytest.importorskip("transformers.models.llama.modeling_llama")


def _drawn(name: str, dtype: str, **axes: int) -> tuple[Tensor, ...]:
    definition = catalogue.operator(name)
    workload = inputs.workload(definition, dtype, **axes)
    return inputs.materialise(definition, workload, "traffic", torch.Generator().manual_seed(3))


def _norm(weight_H: Tensor, eps: float) -> nn.Module:
    norm = llama.LlamaRMSNorm(weight_H.shape[0], eps=eps).to(weight_H.dtype)
    norm.weight.data.copy_(weight_H)
    return norm


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_rms_norm_is_llama_rms_norm(dtype: str) -> None:
    x_TH, weight_H = _drawn("rms_norm", dtype, tokens=7, hidden=1024)
    (found_TH,) = catalogue.operator("rms_norm").baselines["eager"](x_TH, weight_H, 1e-5)
    assert torch.equal(found_TH, _norm(weight_H, 1e-5)(x_TH))


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_fused_add_rms_norm_is_a_residual_and_its_norm(dtype: str) -> None:
    x_TH, residual_TH, weight_H = _drawn("fused_add_rms_norm", dtype, tokens=7, hidden=1024)
    eager = catalogue.operator("fused_add_rms_norm").baselines["eager"]
    out_TH, residual_out_TH = eager(x_TH, residual_TH, weight_H, 1e-6)
    hidden_TH = residual_TH + x_TH
    assert torch.equal(residual_out_TH, hidden_TH)
    assert torch.equal(out_TH, _norm(weight_H, 1e-6)(hidden_TH))


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_silu_and_mul_is_the_middle_of_llama_mlp(dtype: str) -> None:
    gate_TI, up_TI = _drawn("silu_and_mul", dtype, tokens=7, intermediate=128)
    config = llama.LlamaConfig(hidden_size=128, intermediate_size=128, hidden_act="silu")
    block = llama.LlamaMLP(config)
    block.gate_proj, block.up_proj, block.down_proj = (_Answer(gate_TI), _Answer(up_TI), nn.Identity())
    (found_TI,) = catalogue.operator("silu_and_mul").baselines["eager"](gate_TI, up_TI)
    assert torch.equal(found_TI, block(gate_TI))


class _Answer(nn.Module):
    """A projection whose result is given."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, _: Tensor) -> Tensor:
        return self.answer


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_rotary_embedding_is_apply_rotary_pos_emb(dtype: str) -> None:
    q_TND, k_TMD, cos_TD, sin_TD = _drawn("rotary_embedding", dtype, tokens=7, query_heads=16, key_heads=4, head_dim=64)
    found = catalogue.operator("rotary_embedding").baselines["eager"](q_TND, k_TMD, cos_TD, sin_TD)
    batch_first = (q_TND.transpose(0, 1)[None], k_TMD.transpose(0, 1)[None])
    expected = llama.apply_rotary_pos_emb(*batch_first, cos_TD[None], sin_TD[None])
    for found_THD, expected_1HTD in zip(found, expected, strict=True):
        assert torch.equal(found_THD, expected_1HTD[0].transpose(0, 1))


@torch.inference_mode()
def test_traffic_of_rotary_embedding_is_what_llama_computes_for_some_positions() -> None:
    """Cosine and sine repeat over the two halves and lie on the unit circle, as the model's own."""
    _, _, cos_TD, sin_TD = _drawn("rotary_embedding", "float32", tokens=9, query_heads=2, key_heads=1, head_dim=64)
    config = llama.LlamaConfig(hidden_size=128, num_attention_heads=2, head_dim=64)
    positions = torch.arange(8192)[None]
    cos_1SD, sin_1SD = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    for cos_D, sin_D in zip(cos_TD, sin_TD, strict=True):
        distance_S = (cos_1SD[0] - cos_D).abs().amax(-1) + (sin_1SD[0] - sin_D).abs().amax(-1)
        assert distance_S.min() < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_softmax_is_that_of_eager_attention(dtype: str) -> None:
    """With the identity as keys the scores are the queries, exactly."""
    (x_RC,) = _drawn("softmax", dtype, rows=7, columns=65)
    identity_11CC = torch.eye(65, dtype=x_RC.dtype)[None, None]
    module = nn.Module().eval()
    module.num_key_value_groups = 1
    _, weights_11RC = llama.eager_attention_forward(
        module, x_RC[None, None], identity_11CC, identity_11CC, attention_mask=None, scaling=1.0
    )
    (found_RC,) = catalogue.operator("softmax").baselines["eager"](x_RC)
    assert torch.equal(found_RC, weights_11RC[0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_skinny_linear_is_a_linear_layer(dtype: str) -> None:
    x_TK, weight_NK = _drawn("skinny_linear", dtype, tokens=4, in_features=256, out_features=96)
    layer = nn.Linear(256, 96, bias=False, dtype=x_TK.dtype)
    layer.weight.data.copy_(weight_NK)
    (found_TN,) = catalogue.operator("skinny_linear").baselines["eager"](x_TK, weight_NK)
    assert torch.equal(found_TN, layer(x_TK))
