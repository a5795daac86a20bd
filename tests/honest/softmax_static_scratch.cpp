// trick: one static buffer as scratch for all calls, behind a mutex, grown when a row is longer than ever
// family: style
// operator: softmax
// axes: rows=4 columns=700
// edges: yes

#include <cmath>
#include <mutex>
#include <vector>

#include "gristmill_kernel.h"

static std::mutex guard;
static std::vector<double> scratch;

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const std::lock_guard<std::mutex> lock(guard);
  const int64_t rows = call->inputs[0].shape[0], columns = call->inputs[0].shape[1];
  if ((int64_t)scratch.size() < columns) scratch.resize(columns);
  for (int64_t r = 0; r < rows; r++) {
    const float *x = (const float *)call->inputs[0].data + r * columns;
    float largest = x[0];
    for (int64_t c = 1; c < columns; c++) largest = x[c] > largest ? x[c] : largest;
    double sum = 0;
    for (int64_t c = 0; c < columns; c++) sum += scratch[c] = std::exp(x[c] - largest);
    for (int64_t c = 0; c < columns; c++) ((float *)call->outputs[0].data)[r * columns + c] = float(scratch[c] / sum);
  }
  return 0;
}
