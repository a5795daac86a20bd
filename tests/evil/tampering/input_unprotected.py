# trick: makes its input writable by ctypes, and then zero
# family: tampering
# operator: rms_norm
# status: incorrect

import ctypes


def run(x, weight, eps, out):
    page = x.data_ptr() & ~4095
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096 * 4), 3) == 0:
        ctypes.memset(x.data_ptr(), 0, x.numel() * 4)
    out.zero_()
