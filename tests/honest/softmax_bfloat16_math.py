# trick: bfloat16 a row at a time through Python's own exp and fsum: right, and hopelessly slow
# family: style
# operator: softmax
# status: slower
# dtype: bfloat16
# axes: rows=2 columns=64
# ranges: rows=1..8 columns=1..64
# edges: yes

import math

import torch


def run(x, out):
    for row, target in zip(x, out, strict=True):
        scores = row.tolist()
        largest = max(scores)
        powers = [math.exp(score - largest) for score in scores]
        total = math.fsum(powers)
        target.copy_(torch.tensor([power / total for power in powers]))
