// trick: every float32 weight split exactly into three bfloat16 planes, put together again while multiplying
// family: style
// operator: skinny_linear
// axes: tokens=2 in_features=192 out_features=100
// setup: yes
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

static float kept(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits &= 0xFFFF0000;
  std::memcpy(&value, &bits, 4);
  return value;
}

static uint16_t upper(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return uint16_t(bits >> 16);
}

static float widen(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static int64_t weights(const gm_call *call) { return call->inputs[1].shape[0] * call->inputs[1].shape[1]; }

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) { return 3 * weights(call) * 2; }

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const int64_t count = weights(call);
  uint16_t *high = (uint16_t *)packed, *middle = high + count, *low = middle + count;
  for (int64_t i = 0; i < count; i++) {
    const float value = ((const float *)call->inputs[1].data)[i];
    const float rest = value - kept(value);
    high[i] = upper(value);
    middle[i] = upper(rest);
    low[i] = upper(rest - kept(rest));
  }
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const uint16_t *high = (const uint16_t *)call->packed, *middle = high + in * out, *low = middle + in * out;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * in;
    for (int64_t n = 0; n < out; n++) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < in; k++) {
        const int64_t i = n * in + k;
        sum += x[k] * (widen(high[i]) + (widen(middle[i]) + widen(low[i])));
      }
      ((float *)call->outputs[0].data)[t * out + n] = sum;
    }
  }
  return 0;
}
