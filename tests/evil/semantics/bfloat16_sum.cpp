// trick: sums bfloat16 inputs in bfloat16
// family: semantics
// operator: skinny_linear
// status: incorrect
// dtype: bfloat16

#include "gristmill_kernel.h"

static float value(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float result;
  __builtin_memcpy(&result, &wide, 4);
  return result;
}

static uint16_t rounded(float number) {
  uint32_t bits;
  __builtin_memcpy(&bits, &number, 4);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &weight = call->inputs[1];
  const int64_t T = x.shape[0], K = x.shape[1], N = weight.shape[0];
  for (int64_t t = 0; t < T; t++)
    for (int64_t n = 0; n < N; n++) {
      const uint16_t *in = (uint16_t *)x.data + t * K, *w = (uint16_t *)weight.data + n * K;
      uint16_t sum = 0;
      for (int64_t k = 0; k < K; k++) sum = rounded(value(sum) + value(in[k]) * value(w[k]));
      ((uint16_t *)call->outputs[0].data)[t * N + n] = sum;
    }
  return 0;
}
