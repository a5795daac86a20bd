// trick: in_features in blocks of 64, partial sums kept in the output itself
// family: style
// operator: skinny_linear
// axes: tokens=4 in_features=1000 out_features=96
// edges: yes

#include <algorithm>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const float *x = (const float *)call->inputs[0].data, *w = (const float *)call->inputs[1].data;
  float *y = (float *)call->outputs[0].data;
  std::fill(y, y + tokens * out, 0.0f);
  for (int64_t start = 0; start < in; start += 64) {
    const int64_t end = std::min(start + 64, in);
    for (int64_t n = 0; n < out; n++)
      for (int64_t t = 0; t < tokens; t++) {
        float part = 0;
        for (int64_t k = start; k < end; k++) part += x[t * in + k] * w[n * in + k];
        y[t * out + n] += part;
      }
  }
  return 0;
}
