// trick: takes the hard swish, a common approximation
// family: semantics
// operator: silu_and_mul
// status: incorrect

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const float *up = (const float *)call->inputs[1].data;
  for (int64_t i = 0; i < n; i++) {
    const float gate = x[i];
    out[i] = gate * std::fmin(std::fmax(gate + 3, 0.0f), 6.0f) / 6 * up[i];
  }
  return 0;
}
