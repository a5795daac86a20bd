// trick: std::valarray for the scaling and std::inner_product, in float, for the sum
// family: style
// operator: rms_norm
// axes: tokens=3 hidden=640
// edges: yes

#include <cmath>
#include <numeric>
#include <valarray>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const auto tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const auto *x = static_cast<const float *>(call->inputs[0].data);
  const std::valarray<float> weight(static_cast<const float *>(call->inputs[1].data), size_t(hidden));
  auto *out = static_cast<float *>(call->outputs[0].data);
  for (int64_t t = 0; t < tokens; ++t, x += hidden, out += hidden) {
    const std::valarray<float> row(x, size_t(hidden));
    const float mean = std::inner_product(x, x + hidden, x, 0.0f) / float(hidden);
    const std::valarray<float> result = row / std::sqrt(mean + float(call->scalars[0])) * weight;
    std::copy(std::begin(result), std::end(result), out);
  }
  return 0;
}
