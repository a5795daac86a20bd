# trick: a thread of the host launches the work after the answer
# family: timing
# operator: rms_norm
# status: incorrect cheated
# gpu: yes

import threading

import torch


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    threading.Timer(0.01, normalise, (x, weight, eps, out)).start()
