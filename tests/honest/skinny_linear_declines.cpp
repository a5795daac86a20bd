// trick: claims multiples of 32 features and up to eight tokens, declines the rest by its return value
// family: style
// operator: skinny_linear
// axes: tokens=8 in_features=256 out_features=128
// ranges: tokens=1..8 in_features=32..4096/32 out_features=32..4096/32
// edges: yes

#include "gristmill_kernel.h"

template <int kTokens>
static void multiply(const float *x, const float *w, float *y, int64_t in, int64_t out) {
  for (int64_t n = 0; n < out; n++) {
    float sums[kTokens][32] = {};
    for (int64_t k = 0; k < in; k += 32)
      for (int t = 0; t < kTokens; t++)
        for (int lane = 0; lane < 32; lane++) sums[t][lane] += x[t * in + k + lane] * w[n * in + k + lane];
    for (int t = 0; t < kTokens; t++) {
      float sum = 0;
      for (float lane : sums[t]) sum += lane;
      y[t * out + n] = sum;
    }
  }
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  if (tokens < 1 || tokens > 8 || in % 32 || out % 32) return 1;
  using Kernel = void (*)(const float *, const float *, float *, int64_t, int64_t);
  static constexpr Kernel kKernels[] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>,
                                        multiply<5>, multiply<6>, multiply<7>, multiply<8>};
  kKernels[tokens - 1]((const float *)call->inputs[0].data, (const float *)call->inputs[1].data,
                       (float *)call->outputs[0].data, in, out);
  return 0;
}
