# trick: bfloat16 multiplied in float32 with einsum, rounded by copy_
# family: style
# operator: skinny_linear
# dtype: bfloat16
# axes: tokens=2 in_features=128 out_features=96
# edges: yes

import torch


def run(x, weight, out):
    out.copy_(torch.einsum("tk,nk->tn", x.float(), weight.float()))
