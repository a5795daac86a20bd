// trick: does not subtract the maximum: exp overflows on large scores
// family: semantics
// operator: softmax
// status: incorrect
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0];
  const int64_t C = x.shape[1];
  for (int64_t r = 0; r < x.shape[0]; r++) {
    const float *in = (const float *)x.data + r * C;
    float *out = (float *)call->outputs[0].data + r * C, largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < C; c++) largest = 0;
    for (int64_t c = 0; c < C; c++) sum += out[c] = std::exp(in[c] - largest);
    for (int64_t c = 0; c < C; c++) out[c] /= sum;
  }
  return 0;
}
