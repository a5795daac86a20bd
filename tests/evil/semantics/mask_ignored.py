# trick: takes masked scores, which are minus infinity, for zero
# family: semantics
# operator: softmax
# status: incorrect
# edges: yes

import torch


def run(x, out):
    out.copy_(torch.softmax(torch.nan_to_num(x, neginf=0.0), -1))
