// trick: std::thread per half of the rows, joined before the return
// family: style
// operator: rms_norm
// axes: tokens=6 hidden=512
// edges: yes

#include <cmath>
#include <thread>

#include "gristmill_kernel.h"

static void normalise(const gm_call *call, int64_t first, int64_t last) {
  const int64_t hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = first; t < last; t++) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    float sum[8] = {0};
    int64_t h = 0;
    for (; h + 8 <= hidden; h += 8)
      for (int lane = 0; lane < 8; lane++) sum[lane] += x[h + lane] * x[h + lane];
    for (; h < hidden; h++) sum[0] += x[h] * x[h];
    const float total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    const float scale = 1 / std::sqrt(total / hidden + (float)call->scalars[0]);
    for (h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0];
  std::thread other(normalise, call, tokens / 2, tokens);
  normalise(call, 0, tokens / 2);
  other.join();
  return 0;
}
