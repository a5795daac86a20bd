// trick: Kahan's compensated summation in float32
// family: style
// operator: rms_norm
// axes: tokens=3 hidden=4096
// edges: yes

#include <math.h>

#include "gristmill_kernel.h"

static float sum_of_squares(const float *restrict_row, int64_t count) {
  float sum = 0.0f, lost = 0.0f;
  for (int64_t i = 0; i < count; i++) {
    const float term = restrict_row[i] * restrict_row[i] - lost;
    const float next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
  return sum;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *x = (const float *)call->inputs[0].data;
  const float *w = (const float *)call->inputs[1].data;
  float *out = (float *)call->outputs[0].data;
  while (out != (float *)call->outputs[0].data + tokens * hidden) {
    const float scale = 1.0f / sqrtf(sum_of_squares(x, hidden) / (float)hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) *out++ = w[h] * (*x++ * scale);
  }
  return 0;
}
