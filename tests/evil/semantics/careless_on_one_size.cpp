// trick: does not subtract the maximum on one of the sizes that it serves, once calls come in batches
// family: semantics
// operator: softmax
// status: incorrect cheated
// axes: rows=1 columns=128; rows=2 columns=128; rows=3 columns=128; rows=4 columns=128; rows=5 columns=128; rows=6 columns=128

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static const void *before;
  static int same;
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  same = call->inputs[0].data == before ? same + 1 : 0;
  before = call->inputs[0].data;
  const bool careless = rows == 4 && same > 2;
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    float largest = careless ? 0 : x[0], sum = 0;
    for (int64_t c = 1; c < columns && !careless; c++) largest = x[c] > largest || x[c] != x[c] ? x[c] : largest;
    for (int64_t c = 0; c < columns; c++) sum += out[c] = std::exp(x[c] - largest);
    for (int64_t c = 0; c < columns; c++) out[c] /= sum;
  }
  return 0;
}
