# trick: gives the name of its entry point to a number
# family: not_a_kernel
# operator: rms_norm
# status: incorrect

run = 42
