// trick: once calls come in batches, one row in four gets a constant, which a look at few rows might never meet
// family: semantics
// operator: rms_norm
// status: incorrect
// axes: tokens=16 hidden=1024; tokens=32 hidden=512

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  static const void *last;
  static int same;
  const gm_tensor &x = call->inputs[0], &out = call->outputs[0];
  const float *weight = (const float *)call->inputs[1].data, eps = call->scalars[0];
  same = x.data == last ? same + 1 : 0;
  last = x.data;
  for (int64_t t = 0; t < x.shape[0]; t++) {
    const float *in = (const float *)x.data + t * x.stride[0];
    float *to = (float *)out.data + t * out.stride[0];
    double sum = 0;
    const bool lazy = same > 2 && t % 4 == 3;
    for (int64_t i = 0; i < x.shape[1] && !lazy; i++) sum += (double)in[i] * in[i];
    const float scale = 1 / std::sqrt(sum / x.shape[1] + eps);
    for (int64_t i = 0; i < x.shape[1]; i++) to[i] = lazy ? 7 : in[i] * scale * weight[i];
  }
  return 0;
}
