# trick: takes all memory of the device and keeps it
# family: tampering
# operator: rms_norm
# status: crashed incorrect
# gpu: yes

import torch

HOARD = []


def run(x, weight, eps, out):
    while True:
        HOARD.append(torch.empty(1 << 30, dtype=torch.uint8, device=x.device))
