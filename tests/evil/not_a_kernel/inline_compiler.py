# trick: compiles C++ when it is loaded, which nobody lets it
# family: not_a_kernel
# operator: rms_norm
# status: incorrect

from torch.utils.cpp_extension import load_inline

MODULE = load_inline("norm", "int norm(int x) { return x; }", functions=["norm"])


def run(x, weight, eps, out):
    MODULE.norm(1)
