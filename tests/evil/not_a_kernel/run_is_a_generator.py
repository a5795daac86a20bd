# trick: gives back a generator that nobody asks
# family: not_a_kernel
# operator: rms_norm
# status: incorrect

import torch


def run(x, weight, eps, out):
    yield torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)
