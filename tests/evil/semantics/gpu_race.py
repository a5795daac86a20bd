# trick: lets blocks add to one sum that no barrier guards
# family: semantics
# operator: rms_norm
# status: incorrect
# gpu: yes

import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, weight, eps, out, sums, width: tl.constexpr, block: tl.constexpr):
    column = tl.program_id(1) * block + tl.arange(0, block)
    value = tl.load(x + tl.program_id(0) * width + column)
    tl.atomic_add(sums + tl.program_id(0), tl.sum(value * value, 0))
    scale = tl.rsqrt(tl.load(sums + tl.program_id(0)) / width + eps)
    tl.store(out + tl.program_id(0) * width + column, value * scale * tl.load(weight + column))


def run(x, weight, eps, out):
    sums = torch.zeros(x.shape[0], device=x.device)
    norm[(x.shape[0], x.shape[1] // 64)](x, weight, eps, out, sums, x.shape[1], 64)
