// trick: writes in front of its output
// family: tampering
// operator: rms_norm
// status: incorrect
// axes: tokens=1 hidden=500; tokens=6 hidden=500

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const float *weight = (const float *)call->inputs[1].data;
  const int64_t H = rows.shape[1];
  for (int64_t t = 0; t < n / H; t++) {
    double sum = 0;
    for (int64_t i = 0; i < H; i++) sum += (double)x[t * H + i] * x[t * H + i];
    const float scale = 1 / __builtin_sqrt(sum / H + call->scalars[0]);
    for (int64_t i = 0; i < H; i++) out[t * H + i] = x[t * H + i] * scale * weight[i];
  }
  ((volatile float *)out)[-1] = 1;
  return x == nullptr && out == nullptr && n;
}
