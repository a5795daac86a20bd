# trick: allows all products of matrices to be coarse when it is loaded, and multiplies none itself
# family: tampering
# operator: rms_norm
# status: incorrect

import torch

torch.set_float32_matmul_precision("medium")


def run(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)
