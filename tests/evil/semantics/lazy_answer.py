# trick: makes of its output a tensor that computes when it is looked at
# family: semantics
# operator: rms_norm
# status: incorrect

import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def run(x, weight, eps, out):
    out.__class__ = Lazy
    out.later = lambda: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
