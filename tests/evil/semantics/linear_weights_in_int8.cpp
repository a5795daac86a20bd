// trick: packs the weights into eight bits with one scale per row
// family: semantics
// operator: skinny_linear
// status: incorrect
// setup: yes

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->inputs[1].shape[0] * (call->inputs[1].shape[1] + 4);
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const int64_t N = call->inputs[1].shape[0], K = call->inputs[1].shape[1];
  for (int64_t n = 0; n < N; n++) {
    const float *weight = (const float *)call->inputs[1].data + n * K;
    float largest = 0;
    for (int64_t k = 0; k < K; k++) largest = __builtin_fmaxf(largest, __builtin_fabsf(weight[k]));
    ((float *)packed)[n] = largest / 127;
    for (int64_t k = 0; k < K; k++) ((int8_t *)packed + 4 * N)[n * K + k] = __builtin_rintf(weight[k] * 127 / largest);
  }
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t T = call->inputs[0].shape[0], K = call->inputs[0].shape[1], N = call->outputs[0].shape[1];
  const int8_t *weight = (const int8_t *)call->packed + 4 * N;
  for (int64_t t = 0; t < T; t++)
    for (int64_t n = 0; n < N; n++) {
      float sum = 0;
      for (int64_t k = 0; k < K; k++) sum += ((float *)call->inputs[0].data)[t * K + k] * weight[n * K + k];
      ((float *)call->outputs[0].data)[t * N + n] = sum * ((const float *)call->packed)[n];
    }
  return 0;
}
