// trick: one float32 sum over 8192 squares, last element first, never vectorised: as inexact as honest code gets
// family: style
// operator: rms_norm
// axes: tokens=2 hidden=8192
// flags: -fno-tree-vectorize
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = tokens - 1; t >= 0; t--) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    float sum = 0;
    for (int64_t h = hidden - 1; h >= 0; h--) sum += x[h] * x[h];
    const float scale = 1 / sqrtf(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = hidden - 1; h >= 0; h--) out[h] = x[h] * scale * weight[h];
  }
  return 0;
}
