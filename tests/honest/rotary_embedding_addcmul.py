# trick: torch.mul and torch.addcmul into halves of the outputs
# family: style
# operator: rotary_embedding
# axes: tokens=4 query_heads=8 key_heads=2 head_dim=64
# edges: yes

import torch


def rotate(x, cos, sin, out):
    half = x.shape[-1] // 2
    torch.mul(x, cos[:, None], out=out)
    low, high = out[..., :half], out[..., half:]
    low.addcmul_(x[..., half:], sin[:, None, :half], value=-1)
    high.addcmul_(x[..., :half], sin[:, None, half:])


def run(q, k, cos, sin, q_out, k_out):
    rotate(q, cos, sin, q_out)
    rotate(k, cos, sin, k_out)
