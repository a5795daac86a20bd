// trick: bfloat16, products and their sum in float32, one rounding
// family: style
// operator: rotary_embedding
// dtype: bfloat16
// axes: tokens=4 query_heads=8 key_heads=2 head_dim=64
// edges: yes

#include <cstring>

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
  for (int which = 0; which < 2; which++) {
    const gm_tensor &x = call->inputs[which];
    const int64_t heads = x.shape[1], dim = x.shape[2], half = dim / 2;
#pragma omp parallel for collapse(2)
    for (int64_t t = 0; t < x.shape[0]; t++)
      for (int64_t h = 0; h < heads; h++) {
        const uint16_t *in = (const uint16_t *)x.data + (t * heads + h) * dim;
        const uint16_t *c = (const uint16_t *)call->inputs[2].data + t * dim;
        const uint16_t *s = (const uint16_t *)call->inputs[3].data + t * dim;
        uint16_t *out = (uint16_t *)call->outputs[which].data + (t * heads + h) * dim;
        for (int64_t i = 0; i < dim; i++) {
          const float partner = i < half ? -widen(in[i + half]) : widen(in[i - half]);
          out[i] = narrow(widen(in[i]) * widen(c[i]) + partner * widen(s[i]));
        }
      }
  }
  return 0;
}
