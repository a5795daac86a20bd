# trick: switches matrix products to TF32
# family: semantics
# operator: skinny_linear
# status: incorrect
# gpu: yes
# axes: tokens=16 in_features=1024 out_features=1024

import torch

torch.backends.cuda.matmul.allow_tf32 = True


def run(x, weight, out):
    torch.matmul(x, weight.T, out=out)
