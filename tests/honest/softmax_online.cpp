// trick: online softmax: maximum and sum in one pass, the sum rescaled whenever the maximum rises
// family: style
// operator: softmax
// axes: rows=4 columns=1000
// edges: yes

#include <cmath>
#include <limits>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t c = 0; c < columns; c++) {
      if (x[c] > largest) {
        sum = sum * std::exp(largest - x[c]) + 1;
        largest = x[c];
      } else if (x[c] != -std::numeric_limits<float>::infinity()) {
        sum += std::exp(x[c] - largest);
      }
    }
    for (int64_t c = 0; c < columns; c++) out[c] = std::exp(x[c] - largest) / sum;
  }
  return 0;
}
