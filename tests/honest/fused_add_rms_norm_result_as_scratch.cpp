// trick: keeps the sum in the second output and reads it back from there; writes the first output twice
// family: style
// operator: fused_add_rms_norm
// axes: tokens=4 hidden=1024
// edges: yes

#include <cmath>
#include <cstring>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1], count = tokens * hidden;
  const float *x = (const float *)call->inputs[0].data, *residual = (const float *)call->inputs[1].data;
  const float *weight = (const float *)call->inputs[2].data;
  float *out = (float *)call->outputs[0].data, *sum = (float *)call->outputs[1].data;
  std::memcpy(sum, residual, count * sizeof(float));
  for (int64_t i = 0; i < count; i++) sum[i] += x[i];
  for (int64_t i = 0; i < count; i++) out[i] = sum[i] * sum[i];
  for (int64_t t = 0; t < tokens; t++) {
    float *squares = out + t * hidden;
    float total = 0;
    for (int64_t h = 0; h < hidden; h++) total += squares[h];
    const float scale = 1 / std::sqrt(total / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) squares[h] = sum[t * hidden + h] * scale * weight[h];
  }
  return 0;
}
