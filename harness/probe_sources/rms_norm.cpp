// A plain kernel; with SLOWER, one that is slower by that share.
#include "gristmill_kernel.h"
#ifdef SLOWER
#include "slower.h"
#endif

static void row(const float *x, const float *w, float *o, int64_t columns, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < columns; i++) sum += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(sum / columns + eps);
#pragma omp simd
  for (int64_t i = 0; i < columns; i++) o[i] = x[i] * scale * w[i];
}

GM_EXPORT int32_t gm_run(const gm_call *c) {
  const gm_tensor &x = c->inputs[0], &w = c->inputs[1], &o = c->outputs[0];
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const float eps = (float)c->scalars[0];
#ifdef SLOWER
  const Slower slower;
#endif
  for (int64_t r = 0; r < rows; r++)
    row((const float *)x.data + r * x.stride[0], (const float *)w.data, (float *)o.data + r * columns, columns, eps);
  return 0;
}
