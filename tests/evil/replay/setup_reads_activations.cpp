// trick: setup looks at the activations, and packs the answer
// family: replay
// operator: skinny_linear
// status: crashed
// setup: yes

#include <string.h>

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *call) {
  return call->outputs[0].shape[0] * call->outputs[0].shape[1] * 4;
}

GM_EXPORT int32_t gm_setup(const gm_call *call, void *packed) {
  const gm_tensor &x = call->inputs[0], &weight = call->inputs[1];
  for (int64_t t = 0; t < x.shape[0]; t++)
    for (int64_t n = 0; n < weight.shape[0]; n++) {
      float sum = 0;
      for (int64_t k = 0; k < x.shape[1]; k++)
        sum += ((float *)x.data)[t * x.shape[1] + k] * ((float *)weight.data)[n * x.shape[1] + k];
      ((float *)packed)[t * weight.shape[0] + n] = sum;
    }
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  memcpy(call->outputs[0].data, call->packed, gm_packed_bytes(call));
  return 0;
}
