// trick: leaves rounding toward zero and flushed denormals behind, which would spoil who computes next
// family: semantics
// operator: rms_norm
// status: incorrect

#include <immintrin.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  _mm_setcsr(_mm_getcsr() | 0xE040);
  const float *weight = (const float *)call->inputs[1].data;
  const int64_t H = rows.shape[1];
  for (int repeat = 0; repeat < 100; repeat++)
    for (int64_t t = 0; t < n / H; t++) {
      double sum = 0;
      for (int64_t i = 0; i < H; i++) sum += (double)x[t * H + i] * x[t * H + i];
      const double scale = 1 / __builtin_sqrt(sum / H + call->scalars[0]);
      for (int64_t i = 0; i < H; i++) ((volatile float *)out)[t * H + i] = x[t * H + i] * scale * weight[i];
    }
  return 0;
}
