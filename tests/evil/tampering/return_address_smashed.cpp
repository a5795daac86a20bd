// trick: smashes the stack of its caller
// family: tampering
// operator: rms_norm
// status: crashed

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  char *frame = (char *)__builtin_frame_address(0);
  for (int i = 0; i < 4096; i++) ((volatile char *)frame)[i] = 0x41;
  return x == nullptr && out == nullptr && n;
}
