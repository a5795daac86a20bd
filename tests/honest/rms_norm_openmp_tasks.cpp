// trick: an OpenMP task per row, waited for
// family: style
// operator: rms_norm
// axes: tokens=5 hidden=768
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

static void row(const float *x, const float *weight, float *out, int64_t hidden, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t h = 0; h < hidden; h++) sum += x[h] * x[h];
  const float scale = 1 / std::sqrt(sum / hidden + eps);
#pragma omp simd
  for (int64_t h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *x = (const float *)call->inputs[0].data, *weight = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  const float eps = (float)call->scalars[0];
#pragma omp parallel
#pragma omp single
  {
    for (int64_t t = 0; t < tokens; t++) {
#pragma omp task firstprivate(t)
      row(x + t * hidden, weight, out + t * hidden, hidden, eps);
    }
#pragma omp taskwait
  }
  return 0;
}
