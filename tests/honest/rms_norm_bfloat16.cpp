// trick: bfloat16 widened by a shift, summed in float32, rounded to nearest even once at the end
// family: style
// operator: rms_norm
// dtype: bfloat16
// axes: tokens=5 hidden=1024
// edges: yes

#include <cmath>
#include <cstring>

#include "gristmill_kernel.h"

static inline float widen(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

static inline uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const uint16_t *x = (const uint16_t *)call->inputs[0].data, *weight = (const uint16_t *)call->inputs[1].data;
  uint16_t *out = (uint16_t *)call->outputs[0].data;
  for (int64_t t = 0; t < tokens; t++, x += hidden, out += hidden) {
    float sum = 0;
    for (int64_t h = 0; h < hidden; h++) sum += widen(x[h]) * widen(x[h]);
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = narrow(widen(x[h]) * scale * widen(weight[h]));
  }
  return 0;
}
