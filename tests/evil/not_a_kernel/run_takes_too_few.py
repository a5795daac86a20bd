# trick: takes fewer arguments than there are
# family: not_a_kernel
# operator: rms_norm
# status: incorrect


def run(x, out):
    out.copy_(x)
