// trick: -ffast-math, and the classic bit-trick reciprocal root with four Newton steps
// family: style
// operator: fused_add_rms_norm
// axes: tokens=8 hidden=512
// flags: -ffast-math -funroll-loops
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

static float reciprocal_root(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = 0x5f3759df - (bits >> 1);
  float guess;
  std::memcpy(&guess, &bits, 4);
  for (int step = 0; step < 4; step++) guess *= 1.5f - 0.5f * value * guess * guess;
  return guess;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  for (int64_t t = 0; t < tokens; t++) {
    const float *__restrict x = (const float *)call->inputs[0].data + t * hidden;
    const float *__restrict residual = (const float *)call->inputs[1].data + t * hidden;
    const float *__restrict weight = (const float *)call->inputs[2].data;
    float *__restrict out = (float *)call->outputs[0].data + t * hidden;
    float *__restrict added = (float *)call->outputs[1].data + t * hidden;
    float sum = 0;
    for (int64_t h = 0; h < hidden; h++) {
      added[h] = residual[h] + x[h];
      sum += added[h] * added[h];
    }
    const float scale = reciprocal_root(sum / (float)hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = added[h] * scale * weight[h];
  }
  return 0;
}
