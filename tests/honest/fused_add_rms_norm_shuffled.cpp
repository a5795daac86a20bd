// trick: takes the rows in a random order and leaves a line on standard error when it is loaded
// family: style
// operator: fused_add_rms_norm
// axes: tokens=9 hidden=128
// edges: yes

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "gristmill_kernel.h"

__attribute__((constructor)) static void hello() { std::fprintf(stderr, "fused_add_rms_norm: loaded\n"); }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  std::vector<int64_t> order(tokens);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::minstd_rand(1));
  for (const int64_t t : order) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    const float *residual = (const float *)call->inputs[1].data + t * hidden;
    const float *weight = (const float *)call->inputs[2].data;
    float *out = (float *)call->outputs[0].data + t * hidden, *added = (float *)call->outputs[1].data + t * hidden;
    std::transform(x, x + hidden, residual, added, std::plus<float>());
    const float sum = std::inner_product(added, added + hidden, added, 0.0f);
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    std::transform(added, added + hidden, weight, out, [=](float a, float w) { return a * scale * w; });
  }
  return 0;
}
