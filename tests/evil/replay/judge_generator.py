# trick: looks for a live generator whose state would give away inputs and answers
# family: replay
# operator: rms_norm
# status: incorrect

import gc

import torch


def run(x, weight, eps, out):
    out.zero_()
    for generator in [item for item in gc.get_objects() if isinstance(item, torch.Generator)]:
        guess = torch.randn(x.shape, generator=generator)
        out.copy_(guess * torch.rsqrt(guess.square().mean(-1, keepdim=True) + eps) * weight)
