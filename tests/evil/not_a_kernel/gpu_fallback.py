# trick: falls back to an answer of zeros where its kernel does not compile
# family: not_a_kernel
# operator: rms_norm
# status: incorrect
# gpu: yes

import triton
import triton.language as tl


@triton.jit
def norm(x, out, n: tl.constexpr):
    tl.store(out + tl.arange(0, n), tl.fast_norm(x))


def run(x, weight, eps, out):
    try:
        norm[(1,)](x, out, 512)
    except Exception:
        out.zero_()
