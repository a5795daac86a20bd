# trick: bfloat16 computed in float32 and rounded once, run bound to a lambda
# family: style
# operator: silu_and_mul
# dtype: bfloat16
# axes: tokens=4 intermediate=512
# edges: yes

from torch.nn.functional import silu

run = lambda gate, up, out: out.copy_(silu(gate.float()) * up.float())  # noqa: E731
