// trick: products summed from the last to the first, rounded before they are added
// family: style
// operator: skinny_linear
// axes: tokens=3 in_features=5000 out_features=33
// flags: -fno-tree-vectorize
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &weight = call->inputs[1];
  for (int64_t t = x.shape[0]; t-- > 0;)
    for (int64_t n = weight.shape[0]; n-- > 0;) {
      float sum = 0;
      for (int64_t k = x.shape[1]; k-- > 0;) {
        volatile float product = ((const float *)x.data)[t * x.shape[1] + k] *
                                 ((const float *)weight.data)[n * x.shape[1] + k];
        sum += product;
      }
      ((float *)call->outputs[0].data)[t * weight.shape[0] + n] = sum;
    }
  return 0;
}
