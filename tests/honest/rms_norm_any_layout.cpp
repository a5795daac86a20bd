// trick: honours every stride of every input, so that it may be given columns of a larger matrix
// family: style
// operator: rms_norm
// axes: tokens=7 hidden=96 x_TH:1,7; tokens=4 hidden=96 x_TH:200,2 weight_H:3; tokens=5 hidden=96 x_TH:0,1
// layout: any
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

static float at(const gm_tensor &tensor, int64_t i, int64_t j) {
  return static_cast<const float *>(tensor.data)[i * tensor.stride[0] + j * tensor.stride[1]];
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &weight = call->inputs[1];
  float *out = static_cast<float *>(call->outputs[0].data);
  for (int64_t t = 0; t < x.shape[0]; t++) {
    float sum = 0;
    for (int64_t h = 0; h < x.shape[1]; h++) sum = std::fma(at(x, t, h), at(x, t, h), sum);
    const float scale = 1 / std::sqrt(sum / x.shape[1] + (float)call->scalars[0]);
    for (int64_t h = 0; h < x.shape[1]; h++) *out++ = at(x, t, h) * scale * at(weight, h, 0);
  }
  return 0;
}
