// trick: three plain passes, one float32 sum over 32000 columns, never vectorised: a rounding of an ever larger sum per column
// family: style
// operator: softmax
// axes: rows=1 columns=32000
// flags: -fno-tree-vectorize
// edges: yes

#include <math.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    float largest = x[0];
    for (int64_t c = 1; c < columns; c++) largest = fmaxf(largest, x[c]);
    float sum = 0.0f;
    for (int64_t c = 0; c < columns; c++) {
      out[c] = expf(x[c] - largest);
      sum += out[c];
    }
    for (int64_t c = 0; c < columns; c++) out[c] = out[c] / sum;
  }
  return 0;
}
