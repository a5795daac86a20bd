# trick: torch.mm into the output, the weight as a transposed view
# family: style
# operator: skinny_linear
# axes: tokens=4 in_features=256 out_features=192 weight_NK:1,192
# layout: any
# edges: yes

import torch


def run(x, weight, out):
    torch.mm(x, weight.t(), out=out)
