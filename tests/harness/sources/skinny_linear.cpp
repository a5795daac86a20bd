#include "gristmill_kernel.h"
GM_EXPORT int32_t gm_run(const gm_call *c) {
  const gm_tensor &x = c->inputs[0], &w = c->inputs[1], &o = c->outputs[0];
  const int64_t T = x.shape[0], K = x.shape[1], N = w.shape[0];
  #pragma omp parallel for
  for (int64_t n = 0; n < N; n++) {
    const float *W = (const float*)w.data + n*w.stride[0];
    for (int64_t t = 0; t < T; t++) {
      const float *X = (const float*)x.data + t*x.stride[0];
      float s = 0;
      #pragma omp simd reduction(+:s)
      for (int64_t k = 0; k < K; k++) s += X[k]*W[k];
      ((float*)o.data)[t*N+n] = s;
    }
  }
  return 0;
}
