// trick: sums into static scratch that it never clears
// family: semantics
// operator: rms_norm
// status: incorrect

#include "gristmill_kernel.h"

static float sums[64];

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const float *weight = (const float *)call->inputs[1].data;
  const int64_t H = rows.shape[1];
  for (int64_t t = 0; t < n / H; t++) {
    for (int64_t i = 0; i < H; i++) sums[t] += x[t * H + i] * x[t * H + i];
    for (int64_t i = 0; i < H; i++) out[t * H + i] = x[t * H + i] * weight[i] / __builtin_sqrtf(sums[t] / H + 1e-6f);
  }
  return 0;
}
