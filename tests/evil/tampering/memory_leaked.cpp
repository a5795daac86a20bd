// trick: allocates scratch for every call and frees none of it
// family: tampering
// operator: rms_norm
// status: incorrect

#include <cmath>
#include <cstdlib>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    float *squares = (float *)malloc(hidden * sizeof(float));
    for (int64_t h = 0; h < hidden; h++) squares[h] = x[h] * x[h];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t h = 0; h < hidden; h++) sum += squares[h];
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
  return 0;
}
