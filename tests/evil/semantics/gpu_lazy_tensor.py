# trick: answers with a tensor that computes when it is compared
# family: semantics
# operator: rms_norm
# status: incorrect
# gpu: yes

import torch


class Lazy(torch.Tensor):
    pass


def run(x, weight, eps, out):
    out.__class__ = Lazy
    out.answer = lambda: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
