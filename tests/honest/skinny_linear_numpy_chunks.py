# trick: NumPy, a block of output features at a time, in float64
# family: style
# operator: skinny_linear
# axes: tokens=2 in_features=300 out_features=150
# edges: yes

import numpy as np

FEATURES = 64


def run(x, weight, out):
    rows, columns = x.numpy().astype(np.float64), weight.numpy()
    result = out.numpy()
    for start in range(0, len(columns), FEATURES):
        part = slice(start, start + FEATURES)
        result[:, part] = rows @ columns[part].T
