// trick: gives both outputs the same values
// family: semantics
// operator: fused_add_rms_norm
// status: incorrect

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0];
  const int64_t T = x.shape[0], H = x.shape[1];
  const float *weight = (const float *)call->inputs[2].data;
  for (int64_t t = 0; t < T; t++) {
    const float *in = (const float *)x.data + t * H, *residual = (const float *)call->inputs[1].data + t * H;
    float *out = (float *)call->outputs[0].data + t * H, *sum = (float *)call->outputs[1].data + t * H, square = 0;
    for (int64_t i = 0; i < H; i++) sum[i] = in[i] + residual[i];
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < H; i++) square += sum[i] * sum[i];
    const float scale = 1 / __builtin_sqrtf(square / H + (float)call->scalars[0]);
    for (int64_t i = 0; i < H; i++) out[i] = sum[i] = sum[i] * scale * weight[i];
  }
  return 0;
}
