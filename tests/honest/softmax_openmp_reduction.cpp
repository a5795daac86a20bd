// trick: one row across all threads, with OpenMP reductions for the maximum and the sum
// family: style
// operator: softmax
// axes: rows=2 columns=8192
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float *out = (float *)call->outputs[0].data + r * columns;
    float largest = -INFINITY, sum = 0;
#pragma omp parallel
    {
#pragma omp for reduction(max : largest)
      for (int64_t c = 0; c < columns; c++) largest = x[c] > largest ? x[c] : largest;
#pragma omp for reduction(+ : sum)
      for (int64_t c = 0; c < columns; c++) sum += out[c] = std::exp(x[c] - largest);
#pragma omp for
      for (int64_t c = 0; c < columns; c++) out[c] *= 1 / sum;
    }
  }
  return 0;
}
