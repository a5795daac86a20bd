// trick: waits for a signal that never comes
// family: tampering
// operator: rms_norm
// status: timed_out
// deadline: 0.5

#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (;;) pause();
  return x == nullptr && out == nullptr && n;
}
