# trick: a thread does the work after the answer
# family: timing
# operator: rms_norm
# status: incorrect

import threading
import time

import torch


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def later(*call):
    time.sleep(0.02)
    normalise(*call)


def run(x, weight, eps, out):
    threading.Thread(target=later, args=(x, weight, eps, out), daemon=True).start()
