// trick: reads transposed weights as well as plain ones, by strides
// family: style
// operator: skinny_linear
// axes: tokens=3 in_features=72 out_features=56 weight_NK:1,56; tokens=3 in_features=72 out_features=56 x_TK:1,3
// layout: any
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &w = call->inputs[1], &y = call->outputs[0];
  for (int64_t n = 0; n < w.shape[0]; n++)
    for (int64_t t = 0; t < x.shape[0]; t++) {
      float even = 0, odd = 0;
      for (int64_t k = 0; k < x.shape[1]; k++) {
        const float product = ((const float *)x.data)[t * x.stride[0] + k * x.stride[1]] *
                              ((const float *)w.data)[n * w.stride[0] + k * w.stride[1]];
        (k % 2 ? odd : even) += product;
      }
      ((float *)y.data)[t * y.stride[0] + n * y.stride[1]] = even + odd;
    }
  return 0;
}
