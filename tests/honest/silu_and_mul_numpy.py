# trick: NumPy with out=, no torch at all
# family: style
# operator: silu_and_mul
# axes: tokens=5 intermediate=600
# edges: yes

import numpy as np


def run(gate, up, out):
    gates, result = gate.numpy(), out.numpy()
    np.negative(gates, out=result)
    np.exp(result, out=result)
    np.add(result, 1, out=result)
    np.divide(gates, result, out=result)
    np.multiply(result, up.numpy(), out=result)
