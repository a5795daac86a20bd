# trick: bfloat16 through torch, the sum rounded first as the engine does, then the library's norm
# family: style
# operator: fused_add_rms_norm
# dtype: bfloat16
# axes: tokens=3 hidden=512
# edges: yes

import torch
from torch.nn import functional


def run(x, residual, weight, eps, out, residual_out):
    torch.add(x, residual, out=residual_out)
    out.copy_(functional.rms_norm(residual_out, residual_out.shape[-1:], weight, eps))
