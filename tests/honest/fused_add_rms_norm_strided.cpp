// trick: rows may lie apart; within a row it walks by pointer and counts on neighbours
// family: style
// operator: fused_add_rms_norm
// axes: tokens=5 hidden=300 x_TH:300,1 residual_TH:333,1; tokens=1 hidden=300 x_TH:900,1
// layout: inner_contiguous
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor *x = &call->inputs[0], *residual = &call->inputs[1];
  const int64_t hidden = x->shape[1];
  float *out = (float *)call->outputs[0].data, *added = (float *)call->outputs[1].data;
  for (int64_t t = 0; t < x->shape[0]; t++) {
    const float *a = (const float *)x->data + t * x->stride[0];
    const float *b = (const float *)residual->data + t * residual->stride[0];
    const float *w = (const float *)call->inputs[2].data;
    float sum = 0;
    for (int64_t left = hidden; left > 0; left--) {
      const float value = *a++ + *b++;
      sum = __builtin_fmaf(value, value, sum);
      *added++ = value;
    }
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (const float *from = added - hidden; from != added;) *out++ = *from++ * scale * *w++;
  }
  return 0;
}
