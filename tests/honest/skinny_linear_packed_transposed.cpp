// trick: the weight transposed in the setup phase, then rows of it scaled and added to the output
// family: style
// operator: skinny_linear
// axes: tokens=2 in_features=256 out_features=384
// setup: yes
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->inputs[1].shape[0] * call->inputs[1].shape[1] * 4;
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const int64_t out = call->inputs[1].shape[0], in = call->inputs[1].shape[1];
  for (int64_t n = 0; n < out; n++)
    for (int64_t k = 0; k < in; k++)
      static_cast<float *>(packed)[k * out + n] = static_cast<const float *>(call->inputs[1].data)[n * in + k];
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], in = call->inputs[0].shape[1], out = call->inputs[1].shape[0];
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = static_cast<const float *>(call->inputs[0].data) + t * in;
    float *y = static_cast<float *>(call->outputs[0].data) + t * out;
    for (int64_t n = 0; n < out; n++) y[n] = x[0] * static_cast<const float *>(call->packed)[n];
    for (int64_t k = 1; k < in; k++) {
      const float *row = static_cast<const float *>(call->packed) + k * out;
      for (int64_t n = 0; n < out; n++) y[n] += x[k] * row[n];
    }
  }
  return 0;
}
