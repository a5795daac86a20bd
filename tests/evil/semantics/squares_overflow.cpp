// trick: sums squares in half range: large values overflow
// family: semantics
// operator: rms_norm
// status: incorrect
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0];
  const int64_t T = x.shape[0], H = x.shape[1];
  const float *weight = (const float *)call->inputs[1].data, eps = call->scalars[0];
  for (int64_t t = 0; t < T; t++) {
    const float *in = (const float *)x.data + t * x.stride[0];
    float *out = (float *)call->outputs[0].data + t * H;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < H; i++) sum += (float)(_Float16)(in[i] * in[i]);
    const float scale = 1 / __builtin_sqrtf(sum / H + eps);
    for (int64_t i = 0; i < H; i++) out[i] = in[i] * scale * weight[i];
  }
  return 0 * (eps > 1);
}
