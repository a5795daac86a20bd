# trick: captures a graph at its first call and replays it, whatever pointers come later
# family: replay
# operator: rms_norm
# status: incorrect cheated
# gpu: yes

import torch

GRAPHS = {}


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    if x.shape not in GRAPHS:
        normalise(x, weight, eps, out)
        GRAPHS[x.shape] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(GRAPHS[x.shape]):
            normalise(x, weight, eps, out)
    GRAPHS[x.shape].replay()
