// A plain kernel; with SLOWER, one that is slower by that share.
#include "gristmill_kernel.h"
#ifdef SLOWER
#include "slower.h"
#endif

static float dot(const float *x, const float *w, int64_t length) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < length; i++) sum += x[i] * w[i];
  return sum;
}

GM_EXPORT int32_t gm_run(const gm_call *c) {
  const gm_tensor &x = c->inputs[0], &w = c->inputs[1], &o = c->outputs[0];
  const int64_t tokens = x.shape[0], length = x.shape[1], outputs = o.shape[1];
#ifdef SLOWER
  const Slower slower;
#endif
  for (int64_t n = 0; n < outputs; n++)
    for (int64_t t = 0; t < tokens; t++)
      ((float *)o.data)[t * outputs + n] =
          dot((const float *)x.data + t * x.stride[0], (const float *)w.data + n * w.stride[0], length);
  return 0;
}
