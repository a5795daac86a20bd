# trick: works on whole lines of memory, from the address rounded down to one
# family: semantics
# operator: rms_norm
# status: incorrect

import ctypes

import numpy as np

LINE = 64


def lines(tensor):
    first = tensor.data_ptr() // LINE * LINE
    return np.ctypeslib.as_array((ctypes.c_float * tensor.numel()).from_address(first)).reshape(tensor.shape)


def run(x, weight, eps, out):
    rows = lines(x)
    scale = 1 / np.sqrt((rows * rows).mean(-1, keepdims=True) + np.float32(eps))
    np.multiply(rows * scale, lines(weight), out=lines(out))
