// trick: bfloat16 weights widened to float32 once, in the setup phase: twice the memory, half the work
// family: style
// operator: skinny_linear
// dtype: bfloat16
// axes: tokens=4 in_features=256 out_features=200
// setup: yes
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

static float widen(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->inputs[1].shape[0] * call->inputs[1].shape[1] * 4;
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  for (int64_t i = 0; i < call->inputs[1].shape[0] * call->inputs[1].shape[1]; i++)
    ((float *)packed)[i] = widen(((const uint16_t *)call->inputs[1].data)[i]);
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t n = 0; n < out; n++) {
      const uint16_t *x = (const uint16_t *)call->inputs[0].data + t * in;
      const float *w = (const float *)call->packed + n * in;
      float sum = 0;
      for (int64_t k = 0; k < in; k++) sum += widen(x[k]) * w[k];
      uint32_t bits;
      std::memcpy(&bits, &sum, 4);
      ((uint16_t *)call->outputs[0].data)[t * out + n] = uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
  return 0;
}
