// trick: claims a single row only, and declines everything else
// family: style
// operator: softmax
// axes: rows=1 columns=4096; rows=2 columns=4096
// ranges: rows=1..1
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  if (call->inputs[0].shape[0] != 1) return 1;
  const int64_t columns = call->inputs[0].shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)call->outputs[0].data;
  float largest = x[0], sums[16] = {};
  for (int64_t c = 0; c < columns; c++) largest = x[c] > largest ? x[c] : largest;
  for (int64_t c = 0; c < columns; c++) sums[c % 16] += out[c] = std::exp(x[c] - largest);
  float sum = 0;
  for (float lane : sums) sum += lane;
  for (int64_t c = 0; c < columns; c++) out[c] /= sum;
  return 0;
}
