// trick: C-style, exp in double, one branch for the sign of the gate
// family: style
// operator: silu_and_mul
// axes: tokens=4 intermediate=704
// edges: yes

#include <math.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const float *gate = (const float *)call->inputs[0].data;
  const float *up = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  int64_t i, count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  for (i = 0; i < count; i++) {
    double g = gate[i], sigmoid;
    if (g >= 0) {
      sigmoid = 1.0 / (1.0 + exp(-g));
    } else {
      double e = exp(g);
      sigmoid = e / (1.0 + e);
    }
    out[i] = (float)(g * sigmoid * up[i]);
  }
  return 0;
}
