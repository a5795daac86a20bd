# trick: zeroes its input through /proc/self/mem
# family: tampering
# operator: rms_norm
# status: incorrect

import contextlib
from pathlib import Path


def run(x, weight, eps, out):
    with contextlib.suppress(OSError), Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(x.data_ptr())
        memory.write(bytes(x.numel() * 4))
    out.zero_()
