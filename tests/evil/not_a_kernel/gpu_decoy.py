# trick: compiles a Triton kernel and launches none
# family: not_a_kernel
# operator: rms_norm
# status: incorrect
# gpu: yes

import triton
import triton.language as tl


@triton.jit
def norm(x, out, n: tl.constexpr):
    place = tl.arange(0, n)
    tl.store(out + place, tl.load(x + place) * 2)


def run(x, weight, eps, out):
    norm.warmup(x, out, 512, grid=(1,))
