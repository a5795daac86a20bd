# trick: gives back a coroutine that nobody waits for
# family: not_a_kernel
# operator: rms_norm
# status: incorrect

import torch


async def compute(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


run = compute
