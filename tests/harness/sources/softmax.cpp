#include <cmath>
#include <cstdint>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
  const int64_t rows = x.shape[0], columns = x.shape[1];
  for (int64_t r = 0; r < rows; r++) {
    const float *in = (const float *)x.data + r * x.stride[0];
    float *to = (float *)out.data + r * columns;
    float largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < columns; c++) largest = in[c] > largest ? in[c] : largest;
    for (int64_t c = 0; c < columns; c++) to[c] = std::exp(in[c] - largest);
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < columns; c++) sum += to[c];
    for (int64_t c = 0; c < columns; c++) to[c] /= sum;
  }
  return 0;
}
