# trick: defines run in a string only
# family: not_a_kernel
# operator: rms_norm
# status: incorrect rejected

SOURCE = """
def run(x, weight, eps, out):
    pass
"""
