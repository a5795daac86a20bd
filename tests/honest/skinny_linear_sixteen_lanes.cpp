// trick: sixteen interleaved sums in GCC vectors, two output features at a time, added up in lane order
// family: style
// operator: skinny_linear
// axes: tokens=1 in_features=1024 out_features=512
// edges: yes

#include <cstring>

#include "gristmill_kernel.h"

typedef float Lanes __attribute__((vector_size(64)));

static Lanes load(const float *from, int64_t count) {
  Lanes lanes = {};
  std::memcpy(&lanes, from, count < 16 ? count * 4 : 64);
  return lanes;
}

static float total(Lanes lanes) {
  float sum = 0;
  for (int i = 0; i < 16; i++) sum += lanes[i];
  return sum;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * in;
    float *y = (float *)call->outputs[0].data + t * out;
    for (int64_t n = 0; n < out; n += 2) {
      const bool both = n + 1 < out;
      Lanes first = {}, second = {};
      for (int64_t k = 0; k < in; k += 16) {
        const Lanes values = load(x + k, in - k);
        first += values * load(weight + n * in + k, in - k);
        if (both) second += values * load(weight + (n + 1) * in + k, in - k);
      }
      y[n] = total(first);
      if (both) y[n + 1] = total(second);
    }
  }
  return 0;
}
