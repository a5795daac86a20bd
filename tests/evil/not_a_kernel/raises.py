# trick: raises an error, and leaves the work to the engine
# family: not_a_kernel
# operator: rms_norm
# status: incorrect


def run(x, weight, eps, out):
    raise NotImplementedError("use the fallback")
