// trick: std::inner_product in double
// family: style
// operator: skinny_linear
// axes: tokens=2 in_features=512 out_features=128
// edges: yes

#include <numeric>
#include <utility>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const auto [tokens, in] = std::pair(call->inputs[0].shape[0], call->inputs[0].shape[1]);
  const auto *x = static_cast<const float *>(call->inputs[0].data);
  const auto *weight = static_cast<const float *>(call->inputs[1].data);
  auto *out = static_cast<float *>(call->outputs[0].data);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t n = 0; n < call->inputs[1].shape[0]; ++n)
      *out++ = static_cast<float>(std::inner_product(x + t * in, x + (t + 1) * in, weight + n * in, 0.0));
  return 0;
}
