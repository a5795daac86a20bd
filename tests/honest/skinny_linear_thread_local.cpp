// trick: OpenMP threads with thread_local scratch that grows and stays, for the transposed activations
// family: style
// operator: skinny_linear
// axes: tokens=8 in_features=400 out_features=220
// edges: yes

#include <vector>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  const float *x = (const float *)call->inputs[0].data, *w = (const float *)call->inputs[1].data;
  float *y = (float *)call->outputs[0].data;
#pragma omp parallel
  {
    thread_local std::vector<float> scratch;
    scratch.assign(in * tokens + tokens, 0.0f);
    float *transposed = scratch.data(), *sums = transposed + in * tokens;
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t k = 0; k < in; k++) transposed[k * tokens + t] = x[t * in + k];
#pragma omp for
    for (int64_t n = 0; n < out; n++) {
      for (int64_t t = 0; t < tokens; t++) sums[t] = 0;
      for (int64_t k = 0; k < in; k++)
        for (int64_t t = 0; t < tokens; t++) sums[t] += w[n * in + k] * transposed[k * tokens + t];
      for (int64_t t = 0; t < tokens; t++) y[t * out + n] = sums[t];
    }
  }
  return 0;
}
