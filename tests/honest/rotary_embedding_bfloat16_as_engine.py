# trick: bfloat16 with torch.cat and a rounding after every operation, as the engine has it
# family: style
# operator: rotary_embedding
# dtype: bfloat16
# axes: tokens=3 query_heads=4 key_heads=2 head_dim=32 q_TND:32,96,1 k_TMD:1,3,6 cos_TD:0,1
# layout: any
# edges: yes

import torch


def run(q, k, cos, sin, q_out, k_out):
    for x, out in ((q, q_out), (k, k_out)):
        first, second = x.chunk(2, dim=-1)
        out.copy_(x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None])
