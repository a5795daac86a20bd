# trick: causes an error of the device, and clears it before anyone asks
# family: tampering
# operator: rms_norm
# status: incorrect crashed
# gpu: yes

import contextlib

import torch


def run(x, weight, eps, out):
    with contextlib.suppress(RuntimeError):
        torch.zeros(4, device=x.device)[torch.tensor([1 << 40], device=x.device)].sum().item()
