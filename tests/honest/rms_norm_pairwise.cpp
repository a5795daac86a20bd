// trick: pairwise summation by recursion down to single elements
// family: style
// operator: rms_norm
// axes: tokens=4 hidden=1000
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

namespace {
float sum_of_squares(const float *first, const float *last) {
  if (last - first == 1) return *first * *first;
  const float *middle = first + (last - first) / 2;
  return sum_of_squares(first, middle) + sum_of_squares(middle, last);
}
}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t hidden = call->inputs[0].shape[1];
  const auto *weight = static_cast<const float *>(call->inputs[1].data);
  for (int64_t t = 0; t < call->inputs[0].shape[0]; t++) {
    const auto *row = static_cast<const float *>(call->inputs[0].data) + t * hidden;
    auto *to = static_cast<float *>(call->outputs[0].data) + t * hidden;
    const float mean = sum_of_squares(row, row + hidden) / float(hidden);
    const float scale = 1 / std::sqrt(mean + float(call->scalars[0]));
    for (int64_t h = 0; h < hidden; h++) to[h] = row[h] * scale * weight[h];
  }
  return 0;
}
