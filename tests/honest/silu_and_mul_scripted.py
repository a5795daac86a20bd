# trick: torch.jit.trace of the whole, once, when it is loaded
# family: style
# operator: silu_and_mul
# axes: tokens=3 intermediate=256
# edges: yes

import torch


def activation(gate, up):
    return gate * torch.sigmoid(gate) * up


traced = torch.jit.trace(activation, (torch.ones(2, 3), torch.ones(2, 3)))


def run(gate, up, out):
    out.copy_(traced(gate, up))
