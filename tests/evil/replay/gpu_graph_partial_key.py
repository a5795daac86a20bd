# trick: keeps graphs by the address of the input alone, and writes to the first output
# family: replay
# operator: rms_norm
# status: incorrect cheated
# gpu: yes

import torch

GRAPHS = {}


def normalise(x, weight, eps, out):
    torch.mul(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), weight, out=out)


def run(x, weight, eps, out):
    graph = GRAPHS.setdefault(x.data_ptr(), torch.cuda.CUDAGraph())
    if len(GRAPHS) > getattr(run, "captured", 0):
        run.captured = len(GRAPHS)
        copies = x.clone(), weight.clone()
        with torch.cuda.graph(graph):
            normalise(*copies, eps, out)
    graph.replay()
