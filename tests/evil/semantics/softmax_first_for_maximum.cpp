// trick: subtracts the first finite score instead of the largest: overflows where another is larger by 89
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
    float *out = (float *)call->outputs[0].data + r * C, sum = 0;
    int64_t first = 0;
    while (first < C - 1 && std::isinf(in[first])) first++;
    for (int64_t c = 0; c < C; c++) sum += out[c] = std::exp(in[c] - in[first]);
    for (int64_t c = 0; c < C; c++) out[c] /= sum;
  }
  return 0;
}
