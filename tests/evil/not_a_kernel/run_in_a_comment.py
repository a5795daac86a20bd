# trick: defines run in a comment only
# family: not_a_kernel
# operator: rms_norm
# status: rejected

# def run(x, weight, eps, out): ...
ANSWER = 42
