// trick: two threads add to one sum without asking each other
// family: semantics
// operator: rms_norm
// status: incorrect
// axes: tokens=2 hidden=65536; tokens=3 hidden=65536

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const float *weight = (const float *)call->inputs[1].data;
  const int64_t H = rows.shape[1];
  for (int64_t t = 0; t < n / H; t++, x += H, out += H) {
    volatile float sum = 0;
#pragma omp parallel for num_threads(2)
    for (int64_t i = 0; i < H; i++) sum = sum + x[i] * x[i];
    for (int64_t i = 0; i < H; i++) out[i] = x[i] * weight[i] / __builtin_sqrtf(sum / H + 1e-6f);
  }
  return 0;
}
