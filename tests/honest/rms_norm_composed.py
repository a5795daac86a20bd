# trick: torch operations composed into out.copy_()
# family: style
# operator: rms_norm
# axes: tokens=4 hidden=512
# edges: yes


def run(x, weight, eps, out):
    mean_square = x.square().mean(dim=-1, keepdim=True)
    out.copy_(x * (mean_square + eps).rsqrt() * weight)
