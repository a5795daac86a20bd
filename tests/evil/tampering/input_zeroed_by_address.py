# trick: zeroes its input by address
# family: tampering
# operator: rms_norm
# status: crashed

import ctypes


def run(x, weight, eps, out):
    ctypes.memset(x.data_ptr(), 0, x.numel() * 4)
    out.zero_()
