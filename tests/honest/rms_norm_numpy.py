# trick: NumPy over the tensors' memory, in float64, a row at a time
# family: style
# operator: rms_norm
# axes: tokens=3 hidden=320
# edges: yes

import numpy as np


def run(x, weight, eps, out):
    weights = weight.numpy().astype(np.float64)
    for row, target in zip(x.numpy(), out.numpy(), strict=True):
        exact = row.astype(np.float64)
        target[:] = exact / np.sqrt(np.dot(exact, exact) / len(exact) + eps) * weights
