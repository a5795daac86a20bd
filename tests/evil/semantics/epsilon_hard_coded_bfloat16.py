# trick: takes the epsilon of the model that it was written for, whatever it is given
# family: semantics
# operator: fused_add_rms_norm
# dtype: bfloat16
# status: incorrect

import torch


def run(x, residual, weight, eps, out, residual_out):
    torch.add(x, residual, out=residual_out)
    wide = residual_out.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float())
