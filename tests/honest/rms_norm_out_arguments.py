# trick: every step writes through out=, with the result tensor as the only scratch
# family: style
# operator: rms_norm
# axes: tokens=6 hidden=384 x_TH:1000,1
# layout: inner_contiguous
# edges: yes

import torch


def run(x, weight, eps, out):
    torch.mul(x, x, out=out)
    scale = out.mean(-1, keepdim=True).add_(eps).rsqrt_()
    torch.mul(x, scale, out=out)
    torch.mul(out, weight, out=out)
