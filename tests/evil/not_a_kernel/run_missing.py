# trick: defines no run
# family: not_a_kernel
# operator: rms_norm
# status: rejected

import torch

ANSWER = torch.ones(1)
