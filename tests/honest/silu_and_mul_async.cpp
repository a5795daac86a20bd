// trick: std::async, the future awaited before the return
// family: style
// operator: silu_and_mul
// axes: tokens=6 intermediate=1024
// edges: yes

#include <cmath>
#include <future>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  const auto part = [call](int64_t first, int64_t last) {
    const auto *gate = static_cast<const float *>(call->inputs[0].data);
    const auto *up = static_cast<const float *>(call->inputs[1].data);
    auto *out = static_cast<float *>(call->outputs[0].data);
    for (int64_t i = first; i < last; i++) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    return last - first;
  };
  auto other = std::async(std::launch::async, part, count / 2, count);
  const int64_t done = part(0, count / 2) + other.get();
  return done == count ? 0 : 1;
}
