# trick: multiplies in bfloat16, where the hardware is twice as fast
# family: semantics
# operator: skinny_linear
# status: incorrect

import torch


def run(x, weight, out):
    out.copy_(torch.nn.functional.linear(x.bfloat16(), weight.bfloat16()))
