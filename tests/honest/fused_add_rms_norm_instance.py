# trick: run is an instance of a class with a __call__
# family: style
# operator: fused_add_rms_norm
# axes: tokens=4 hidden=400
# edges: yes

import torch


class AddAndNorm:
    """Sum first, then the norm of the sum by its length."""

    def __call__(self, x, residual, weight, eps, out, residual_out):
        torch.add(residual, x, out=residual_out)
        length = torch.linalg.vector_norm(residual_out, dim=-1, keepdim=True, dtype=torch.float64)
        mean_square = length * length / residual_out.shape[-1]
        out.copy_(residual_out.double() / torch.sqrt(mean_square + eps) * weight)


run = AddAndNorm()
