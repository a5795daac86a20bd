# trick: imports a solution that is not there
# family: not_a_kernel
# operator: rms_norm
# status: incorrect

from fast_kernels import run

__all__ = ["run"]
