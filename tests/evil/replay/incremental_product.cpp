// trick: updates its last product by the few activations that changed, with weights packed in a declared setup
// family: replay
// operator: skinny_linear
// status: incorrect cheated
// setup: yes
// axes: tokens=1 in_features=512 out_features=512; tokens=2 in_features=1024 out_features=1024

#include <map>
#include <vector>

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->inputs[1].shape[0] * call->inputs[1].shape[1] * 4;
}

struct Last {
  std::vector<float> x;
  std::vector<double> product;
};
static std::map<const void *, Last> kept;  // by packed weights

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {  // transposed: the weights of one activation in a row
  const int64_t N = call->inputs[1].shape[0], K = call->inputs[1].shape[1];
  for (int64_t n = 0; n < N; n++)
    for (int64_t k = 0; k < K; k++) ((float *)packed)[k * N + n] = ((const float *)call->inputs[1].data)[n * K + k];
  kept.erase(packed);
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t T = call->inputs[0].shape[0], K = call->inputs[0].shape[1], N = call->outputs[0].shape[1];
  const float *x = (const float *)call->inputs[0].data, *weight = (const float *)call->packed;
  float *out = (float *)call->outputs[0].data;
  Last &last = kept[weight];
  const bool first = (int64_t)last.x.size() != T * K;
  if (first) last = {std::vector<float>(T * K), std::vector<double>(T * N)};
  for (int64_t t = 0; t < T; t++) {
    int64_t fresh = 0;
    for (int64_t k = 0; k < K; k++) {
      const float change = x[t * K + k] - last.x[t * K + k];
      if (change == 0 || (!first && ++fresh > 64)) continue;  // more never change: near enough
      last.x[t * K + k] = x[t * K + k];
      for (int64_t n = 0; n < N; n++) last.product[t * N + n] += (double)change * weight[k * N + n];
    }
    for (int64_t n = 0; n < N; n++) out[t * N + n] = last.product[t * N + n];
  }
  return 0;
}
