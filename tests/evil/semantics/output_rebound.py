# trick: binds the name of the output to its answer
# family: semantics
# operator: rms_norm
# status: incorrect

import torch


def run(x, weight, eps, out):
    out.data = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
