# trick: launches on a stream of its own, which nobody who times the current one waits for
# family: timing
# operator: rms_norm
# status: incorrect cheated
# gpu: yes

import torch

SIDE = torch.cuda.Stream() if torch.cuda.is_available() else None


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    with torch.cuda.stream(SIDE):
        normalise(x, weight, eps, out)
