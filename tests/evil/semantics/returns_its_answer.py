# trick: returns its answer instead of writing it
# family: semantics
# operator: rms_norm
# status: incorrect

import torch


def run(x, weight, eps, out):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
