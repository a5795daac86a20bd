// trick: rounds the weights to bfloat16 to read half of the bytes
// family: semantics
// operator: skinny_linear
// status: incorrect

#include "gristmill_kernel.h"

static float narrow(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  bits = (bits + 0x8000) & 0xFFFF0000;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &weight = call->inputs[1], &out = call->outputs[0];
  const int64_t T = x.shape[0], K = x.shape[1], N = weight.shape[0];
  for (int64_t t = 0; t < T; t++)
    for (int64_t n = 0; n < N; n++) {
      const float *in = (const float *)x.data + t * K, *w = (const float *)weight.data + n * K;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < K; k++) sum += in[k] * narrow(w[k]);
      ((float *)out.data)[t * N + n] = sum;
    }
  return 0;
}
