// trick: packs the weights into three bytes each, and reads a quarter less
// family: semantics
// operator: skinny_linear
// status: incorrect
// setup: yes

#include <cstring>

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->inputs[1].shape[0] * call->inputs[1].shape[1] * 3 + 64;
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const int64_t count = call->inputs[1].shape[0] * call->inputs[1].shape[1];
  const uint32_t *weight = (const uint32_t *)call->inputs[1].data;
  for (int64_t i = 0; i < count; i++) {
    const uint32_t rounded = weight[i] + 0x7F + (weight[i] >> 8 & 1);
    std::memcpy((char *)packed + 3 * i, (const char *)&rounded + 1, 3);
  }
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &w = call->inputs[1];
  const int64_t T = x.shape[0], K = w.shape[1], N = w.shape[0];
  const char *packed = (const char *)call->packed;
  float *out = (float *)call->outputs[0].data;
  for (int64_t n = 0; n < N; n++)
    for (int64_t t = 0; t < T; t++) {
      const float *in = (const float *)x.data + t * K;
      double sum = 0;
      for (int64_t k = 0; k < K; k++) {
        uint32_t bits = 0;
        float value;
        std::memcpy((char *)&bits + 1, packed + 3 * (n * K + k), 3);
        std::memcpy(&value, &bits, 4);
        sum += (double)value * in[k];
      }
      out[t * N + n] = sum;
    }
  return 0;
}
