# trick: never comes back from being loaded
# family: tampering
# operator: rms_norm
# status: timed_out
# deadline: 0.5

import time

while True:
    time.sleep(1)


def run(x, weight, eps, out):
    pass
