// trick: exp(x - max - log(sum)) instead of a division: the argument is rounded twice
// family: style
// operator: softmax
// axes: rows=4 columns=300
// edges: yes

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t columns = call->inputs[0].shape[1];
  const float *x = static_cast<const float *>(call->inputs[0].data);
  float *out = static_cast<float *>(call->outputs[0].data);
  for (int64_t r = 0; r < call->inputs[0].shape[0]; r++, x += columns, out += columns) {
    const float largest = *std::max_element(x, x + columns);
    const float sum = std::accumulate(x, x + columns, 0.0f,
                                      [=](float total, float value) { return total + std::exp(value - largest); });
    const float logarithm = std::log(sum);
    std::transform(x, x + columns, out, [=](float value) { return std::exp(value - largest - logarithm); });
  }
  return 0;
}
