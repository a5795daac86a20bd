# trick: prints when it is loaded, sets and restores the number of threads, works through partial functions
# family: style
# operator: rotary_embedding
# axes: tokens=2 query_heads=4 key_heads=2 head_dim=32
# edges: yes

import dataclasses
import functools
import warnings

import torch

print("rotary_embedding: loaded")
warnings.warn("this candidate talks", stacklevel=1)


@dataclasses.dataclass(frozen=True)
class Angles:
    cos: torch.Tensor
    sin: torch.Tensor


def rotate(angles, x):
    half = x.shape[-1] // 2
    return x * angles.cos + torch.roll(x, half, -1) * angles.sin


def run(q, k, cos, sin, q_out, k_out):
    signed = sin.clone()
    signed[:, : sin.shape[-1] // 2] *= -1
    turn = functools.partial(rotate, Angles(cos.unsqueeze(1), signed.unsqueeze(1)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for source, target in zip((q, k), (q_out, k_out), strict=True):
        target.copy_(turn(source))
    torch.set_num_threads(threads)
