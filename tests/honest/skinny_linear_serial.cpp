// trick: one float32 sum over 4097 products, never vectorised: the textbook dot product
// family: style
// operator: skinny_linear
// axes: tokens=2 in_features=4097 out_features=64
// flags: -fno-tree-vectorize
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const float *x = (const float *)call->inputs[0].data, *w = (const float *)call->inputs[1].data;
  float *y = (float *)call->outputs[0].data;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t n = 0; n < out; n++) {
      float sum = 0;
      for (int64_t k = 0; k < in; k++) sum += x[t * in + k] * w[n * in + k];
      y[t * out + n] = sum;
    }
  return 0;
}
