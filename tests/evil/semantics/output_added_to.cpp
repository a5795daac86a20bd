// trick: adds to an output that it takes for zero
// family: semantics
// operator: rms_norm
// status: incorrect

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < n / rows.shape[1]; t++, x += rows.shape[1], out += rows.shape[1]) {
    float sum = 0;
    for (int64_t i = 0; i < rows.shape[1]; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < rows.shape[1]; i++) out[i] += x[i] * weight[i] / __builtin_sqrtf(sum / rows.shape[1]);
  }
  return 0;
}
