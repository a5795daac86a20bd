# trick: the library's own call with out=
# family: style
# operator: softmax
# axes: rows=4 columns=512; rows=4 columns=512 x_RC:1,4
# layout: any
# edges: yes

import torch


def run(x, out):
    torch.softmax(x, -1, out=out)
