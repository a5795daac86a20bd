#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *c) {
  const gm_tensor &x = c->inputs[0], &w = c->inputs[1], &o = c->outputs[0];
  const int64_t T = x.shape[0], H = x.shape[1];
  const float eps = (float)c->scalars[0];
  const float *W = (const float*)w.data;
  #pragma omp parallel for if (T*H > 65536)
  for (int64_t t = 0; t < T; t++) {
    const float *X = (const float*)x.data + t*x.stride[0];
    float *O = (float*)o.data + t*H;
    float s = 0;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < H; i++) s += X[i]*X[i];
    const float r = 1.0f/__builtin_sqrtf(s/H + eps);
    #pragma omp simd
    for (int64_t i = 0; i < H; i++) O[i] = X[i]*r*W[i];
  }
  return 0;
}
