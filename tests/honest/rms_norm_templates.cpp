// trick: a template per width, chosen through a table of function pointers
// family: style
// operator: rms_norm
// axes: tokens=4 hidden=512
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

namespace {
using Row = void (*)(const float *, const float *, float *, int64_t, float);

template <int64_t kHidden>
void row(const float *x, const float *weight, float *out, int64_t hidden, float eps) {
  const int64_t width = kHidden ? kHidden : hidden;
  float sums[16] = {};
  int64_t h = 0;
  for (; h + 16 <= width; h += 16)
    for (int lane = 0; lane < 16; ++lane) sums[lane] += x[h + lane] * x[h + lane];
  for (; h < width; ++h) sums[h % 16] += x[h] * x[h];
  float sum = 0;
  for (float lane : sums) sum += lane;
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
  for (h = 0; h < width; ++h) out[h] = x[h] * scale * weight[h];
}

struct Entry {
  int64_t hidden;
  Row row;
};
constexpr Entry kTable[] = {{64, row<64>}, {257, row<257>}, {512, row<512>}, {1024, row<1024>}};

Row choose(int64_t hidden) {
  for (const Entry &entry : kTable)
    if (entry.hidden == hidden) return entry.row;
  return row<0>;
}
}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const Row kernel = choose(hidden);
  for (int64_t t = 0; t < tokens; ++t)
    kernel(static_cast<const float *>(call->inputs[0].data) + t * hidden,
           static_cast<const float *>(call->inputs[1].data), static_cast<float *>(call->outputs[0].data) + t * hidden,
           hidden, static_cast<float>(call->scalars[0]));
  return 0;
}
