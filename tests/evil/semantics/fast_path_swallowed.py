# trick: tries a fast path that always fails, and keeps quiet about it
# family: semantics
# operator: rms_norm
# status: incorrect

import contextlib

import torch


def run(x, weight, eps, out):
    with contextlib.suppress(Exception):
        out.copy_(torch.ops.fast.rms_norm(x, weight, eps))
