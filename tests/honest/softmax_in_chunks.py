# trick: two rows at a time, columns in chunks, sums in float64
# family: style
# operator: softmax
# axes: rows=5 columns=900
# edges: yes

import torch

ROWS, COLUMNS = 2, 256


def run(x, out):
    for rows, target in zip(x.split(ROWS), out.split(ROWS), strict=True):
        largest = rows.amax(-1, keepdim=True)
        total = torch.zeros(len(rows), 1, dtype=torch.float64)
        for part, to in zip(rows.split(COLUMNS, 1), target.split(COLUMNS, 1), strict=True):
            to.copy_(part).sub_(largest).exp_()
            total += to.sum(-1, keepdim=True, dtype=torch.float64)
        target.div_(total)
