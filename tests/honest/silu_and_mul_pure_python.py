# trick: plain Python floats in a double loop: right, and hopelessly slow
# family: style
# operator: silu_and_mul
# status: slower
# axes: tokens=2 intermediate=48
# ranges: tokens=1..8 intermediate=1..64
# edges: yes

from math import exp, inf


def run(gate, up, out):
    for row, (gates, ups) in enumerate(zip(gate.tolist(), up.tolist(), strict=True)):
        for column, (g, u) in enumerate(zip(gates, ups, strict=True)):
            out[row, column] = g / (1.0 + (exp(-g) if g > -700.0 else inf)) * u
