# trick: works in its first calls and never again
# family: timing
# operator: rms_norm
# status: cheated incorrect

import itertools

import torch

CALLS = itertools.count()


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    if next(CALLS) < 12:
        normalise(x, weight, eps, out)
