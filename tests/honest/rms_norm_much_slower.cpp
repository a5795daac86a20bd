// trick: recomputes the row's sum for every single element: right, and hopelessly slow
// family: style
// operator: rms_norm
// status: slower
// axes: tokens=4 hidden=512
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

__attribute__((noinline)) static long double mean_square(const float *row, int64_t hidden) {
  long double sum = 0;
  for (int64_t h = 0; h < hidden; h++) sum += (long double)row[h] * row[h];
  return sum / hidden;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  for (int64_t i = 0; i < tokens * hidden; i++) {
    const float *row = (const float *)call->inputs[0].data + i / hidden * hidden;
    float *volatile out = (float *)call->outputs[0].data;
    out[i] = (float)(row[i % hidden] / std::sqrt(mean_square(row, hidden) + call->scalars[0]) *
                     ((const float *)call->inputs[1].data)[i % hidden]);
  }
  return 0;
}
