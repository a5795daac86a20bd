// trick: weights packed into panels of sixteen output features, zeros where a panel is not full
// family: style
// operator: skinny_linear
// axes: tokens=4 in_features=320 out_features=200
// setup: yes
// edges: yes

#include "gristmill_kernel.h"

static const int64_t kPanel = 16;

static int64_t panels(const gm_call *call) { return (call->inputs[1].shape[0] + kPanel - 1) / kPanel; }

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return panels(call) * kPanel * call->inputs[1].shape[1] * (int64_t)sizeof(float);
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const int64_t out = call->inputs[1].shape[0], in = call->inputs[1].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  float *to = (float *)packed;
  for (int64_t p = 0; p < panels(call); p++)
    for (int64_t k = 0; k < in; k++)
      for (int64_t n = p * kPanel; n < (p + 1) * kPanel; n++) *to++ = n < out ? weight[n * in + k] : 0.0f;
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
#pragma omp parallel for schedule(dynamic)
  for (int64_t p = 0; p < panels(call); p++) {
    const float *panel = (const float *)call->packed + p * kPanel * in;
    for (int64_t t = 0; t < tokens; t++) {
      const float *x = (const float *)call->inputs[0].data + t * in;
      float sums[kPanel] = {};
      for (int64_t k = 0; k < in; k++)
        for (int64_t lane = 0; lane < kPanel; lane++) sums[lane] += x[k] * panel[k * kPanel + lane];
      for (int64_t lane = 0; lane < kPanel && p * kPanel + lane < out; lane++)
        ((float *)call->outputs[0].data)[t * out + p * kPanel + lane] = sums[lane];
    }
  }
  return 0;
}
