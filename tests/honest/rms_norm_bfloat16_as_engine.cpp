// trick: bfloat16 with the engine's own two roundings, before and after the weight
// family: style
// operator: rms_norm
// dtype: bfloat16
// axes: tokens=3 hidden=768
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

struct Brain {
  uint16_t bits;
  operator float() const {
    union { uint32_t u; float f; } wide = {uint32_t(bits) << 16};
    return wide.f;
  }
  static Brain of(float value) {
    union { float f; uint32_t u; } wide = {value};
    const uint32_t kept = wide.u >> 16, lost = wide.u & 0xFFFF;
    const bool up = lost > 0x8000 || (lost == 0x8000 && (kept & 1));
    return {uint16_t(kept + up)};
  }
};

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const Brain *x = (const Brain *)call->inputs[0].data, *weight = (const Brain *)call->inputs[1].data;
  Brain *out = (Brain *)call->outputs[0].data;
  for (int64_t t = 0; t < tokens; t++) {
    double sum = 0;
    for (int64_t h = 0; h < hidden; h++) sum += double(x[t * hidden + h]) * x[t * hidden + h];
    const float scale = float(1 / std::sqrt(sum / hidden + call->scalars[0]));
    for (int64_t h = 0; h < hidden; h++)
      out[t * hidden + h] = Brain::of(weight[h] * float(Brain::of(x[t * hidden + h] * scale)));
  }
  return 0;
}
