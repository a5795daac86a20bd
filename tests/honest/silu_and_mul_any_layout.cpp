// trick: column by column, for matrices whose columns are dense as well as for those whose rows are
// family: style
// operator: silu_and_mul
// axes: tokens=9 intermediate=40 gate_TI:1,9 up_TI:1,9; tokens=9 intermediate=40 gate_TI:80,1 up_TI:80,2
// layout: any
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &gate = call->inputs[0], &up = call->inputs[1], &out = call->outputs[0];
  for (int64_t column = 0; column < gate.shape[1]; column++) {
    for (int64_t row = 0; row < gate.shape[0]; row++) {
      const float g = ((const float *)gate.data)[row * gate.stride[0] + column * gate.stride[1]];
      const float u = ((const float *)up.data)[row * up.stride[0] + column * up.stride[1]];
      ((float *)out.data)[row * out.stride[0] + column * out.stride[1]] = g / (1 + std::exp(-g)) * u;
    }
  }
  return 0;
}
