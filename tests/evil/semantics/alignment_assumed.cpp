// trick: takes every tensor for aligned to 64 bytes where its rows are whole lines
// family: semantics
// operator: rms_norm
// status: crashed

#include "gristmill_kernel.h"

typedef float lanes __attribute__((vector_size(64)));

static void by_element(const float *in, const float *weight, float *to, int64_t size, float scale) {
  for (int64_t i = 0; i < size; i++) to[i] = in[i] * scale * weight[i];
}

static void by_line(const float *in, const float *weight, float *to, int64_t size, float scale) {
  for (int64_t i = 0; i < size; i += 16) *(lanes *)(to + i) = *(const lanes *)(in + i) * scale * *(const lanes *)(weight + i);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &w = call->inputs[1], &out = call->outputs[0];
  const int64_t size = x.shape[1];
  for (int64_t t = 0; t < x.shape[0]; t++) {
    const float *in = (const float *)x.data + t * x.stride[0];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += in[i] * in[i];
    const float scale = 1 / __builtin_sqrtf(sum / size + (float)call->scalars[0]);
    (size % 16 ? by_element : by_line)(in, (const float *)w.data, (float *)out.data + t * size, size, scale);
  }
  return 0;
}
