// trick: takes packed memory for whole pages, and rounds its address down to one
// family: semantics
// operator: skinny_linear
// status: incorrect crashed
// axes: tokens=1 in_features=120 out_features=150
// setup: yes

#include <cstring>

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->inputs[1].shape[0] * call->inputs[1].shape[1] * 4;
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  std::memcpy((void *)((uintptr_t)packed / 4096 * 4096), call->inputs[1].data, gm_packed_bytes(call));
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &w = call->inputs[1];
  const int64_t T = x.shape[0], K = w.shape[1], N = w.shape[0];
  const float *packed = (const float *)((uintptr_t)call->packed / 4096 * 4096), *in = (const float *)x.data;
  float *out = (float *)call->outputs[0].data;
  for (int64_t n = 0; n < N; n++)
    for (int64_t t = 0; t < T; t++) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < K; k++) sum += packed[n * K + k] * in[t * K + k];
      out[t * N + n] = sum;
    }
  return 0;
}
