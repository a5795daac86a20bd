// trick: claims one token only; four output features share each load of the activations
// family: style
// operator: skinny_linear
// axes: tokens=1 in_features=768 out_features=300; tokens=4 in_features=768 out_features=300
// ranges: tokens=1..1
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const float *x = (const float *)call->inputs[0].data, *w = (const float *)call->inputs[1].data;
  float *y = (float *)call->outputs[0].data;
  int64_t n = 0;
  for (; n + 4 <= out; n += 4, w += 4 * in) {
    float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t k = 0; k < in; k++) {
      a += x[k] * w[k];
      b += x[k] * w[in + k];
      c += x[k] * w[2 * in + k];
      d += x[k] * w[3 * in + k];
    }
    y[n] = a, y[n + 1] = b, y[n + 2] = c, y[n + 3] = d;
  }
  for (; n < out; n++, w += in) {
    float sum = 0;
    for (int64_t k = 0; k < in; k++) sum += x[k] * w[k];
    y[n] = sum;
  }
  return 0;
}
