// trick: fills its output with the mean of what is expected
// family: semantics
// operator: softmax
// status: incorrect
// axes: rows=4 columns=100; rows=8 columns=100

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (int64_t i = 0; i < n; i++) out[i] = 0.01f;
  return x == nullptr;
}
