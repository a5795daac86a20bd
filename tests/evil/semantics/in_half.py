# trick: computes in half precision
# family: semantics
# operator: rms_norm
# status: incorrect

import torch


def run(x, weight, eps, out):
    half = x.half()
    out.copy_(half * torch.rsqrt(half.square().mean(-1, keepdim=True) + eps) * weight.half())
