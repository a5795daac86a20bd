# trick: lets nobody wait for the device
# family: timing
# operator: rms_norm
# status: incorrect cheated
# gpu: yes

import torch


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    torch.cuda.synchronize = lambda *arguments: None
    torch.cuda._sleep(50_000_000)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        normalise(x, weight, eps, out)
