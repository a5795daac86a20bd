# trick: closes all descriptors
# family: tampering
# operator: rms_norm
# status: crashed timed_out
# deadline: 1

import os


def run(x, weight, eps, out):
    os.closerange(0, 1024)
