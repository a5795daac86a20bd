// trick: exp2 of a scaled difference, and the output written twice
// family: style
// operator: softmax
// axes: rows=6 columns=640
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  for (int64_t i = 0; i < rows * columns; i++) ((float *)call->outputs[0].data)[i] = 0;
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    float largest = -INFINITY;
    for (int64_t c = 0; c < columns; c++) largest = std::fmax(largest, x[c]);
    float sums[4] = {0, 0, 0, 0};
    for (int64_t c = 0; c < columns; c++) {
      out[c] = std::exp2((x[c] - largest) * 1.44269504088896341f);
      sums[c & 3] += out[c];
    }
    const float factor = 1.0f / ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int64_t c = 0; c < columns; c++) out[c] *= factor;
  }
  return 0;
}
