// trick: two rows at a time, to read the weight once for both; a last odd row alone
// family: style
// operator: fused_add_rms_norm
// axes: tokens=7 hidden=256
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

template <int kRows>
static void rows(const gm_call *call, int64_t first) {
  const int64_t hidden = call->inputs[0].shape[1];
  const float *x = (const float *)call->inputs[0].data + first * hidden;
  const float *residual = (const float *)call->inputs[1].data + first * hidden;
  const float *weight = (const float *)call->inputs[2].data;
  float *out = (float *)call->outputs[0].data + first * hidden;
  float *added = (float *)call->outputs[1].data + first * hidden;
  float sums[kRows] = {}, scales[kRows];
  for (int64_t h = 0; h < hidden; h++)
    for (int r = 0; r < kRows; r++) {
      const float value = x[r * hidden + h] + residual[r * hidden + h];
      added[r * hidden + h] = value;
      sums[r] += value * value;
    }
  for (int r = 0; r < kRows; r++) scales[r] = 1 / std::sqrt(sums[r] / hidden + (float)call->scalars[0]);
  for (int64_t h = 0; h < hidden; h++)
    for (int r = 0; r < kRows; r++) out[r * hidden + h] = added[r * hidden + h] * (scales[r] * weight[h]);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0];
  int64_t t = 0;
  for (; t + 2 <= tokens; t += 2) rows<2>(call, t);
  if (t < tokens) rows<1>(call, t);
  return 0;
}
