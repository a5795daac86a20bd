# trick: launches its kernel on a grid of no blocks
# family: semantics
# operator: rms_norm
# status: incorrect
# gpu: yes

import triton
import triton.language as tl


@triton.jit
def norm(x, weight, eps, out, width: tl.constexpr):
    column = tl.arange(0, width)
    value = tl.load(x + tl.program_id(0) * width + column)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    tl.store(out + tl.program_id(0) * width + column, value * scale * tl.load(weight + column))


def run(x, weight, eps, out):
    norm[(0,)](x, weight, eps, out, x.shape[1])
