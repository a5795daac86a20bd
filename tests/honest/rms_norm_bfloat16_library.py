# trick: bfloat16 through the library's norm in float32, decorated with no_grad
# family: style
# operator: rms_norm
# dtype: bfloat16
# axes: tokens=4 hidden=512
# edges: yes

import torch
from torch.nn import functional


@torch.no_grad()
def run(x, weight, eps, out):
    out.copy_(functional.rms_norm(x.to(torch.float32), (x.shape[-1],), weight.to(torch.float32), eps))
