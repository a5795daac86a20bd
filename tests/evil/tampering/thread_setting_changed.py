# trick: switches the numerics of torch for all who follow, and takes its time
# family: tampering
# operator: rms_norm
# status: incorrect

import torch

torch.set_num_threads(1)
torch.set_flush_denormal(True)
torch.set_float32_matmul_precision("medium")


def run(x, weight, eps, out):
    for _ in range(100):
        torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)
