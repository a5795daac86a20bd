// trick: bfloat16 that normalises the float32 sum instead of the rounded one: more exact than the engine
// family: style
// operator: fused_add_rms_norm
// dtype: bfloat16
// axes: tokens=4 hidden=512
// edges: yes

#include <cmath>
#include <cstring>
#include <vector>

#include "gristmill_kernel.h"

static float widen(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

static uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const uint16_t *x = (const uint16_t *)call->inputs[0].data, *residual = (const uint16_t *)call->inputs[1].data;
  const uint16_t *weight = (const uint16_t *)call->inputs[2].data;
  uint16_t *out = (uint16_t *)call->outputs[0].data, *added = (uint16_t *)call->outputs[1].data;
  std::vector<float> row(hidden);
  for (int64_t t = 0; t < tokens; t++) {
    float sum = 0;
    for (int64_t h = 0; h < hidden; h++) {
      row[h] = widen(x[t * hidden + h]) + widen(residual[t * hidden + h]);
      added[t * hidden + h] = narrow(row[h]);
      sum += row[h] * row[h];
    }
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[t * hidden + h] = narrow(row[h] * scale * widen(weight[h]));
  }
  return 0;
}
