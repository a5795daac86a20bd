// trick: recurses without end
// family: tampering
// operator: rms_norm
// status: crashed

#include "gristmill_kernel.h"

static float dive(const float *x, int64_t depth) {
  volatile char room[4096];
  room[depth % 4096] = 1;
  return depth < 0 ? x[0] : dive(x, depth + 1) + room[7];
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  out[0] = dive(x, 1);
  return x == nullptr && out == nullptr && n;
}
