// trick: writes to its input through /proc/self/mem, which knows no protection
// family: tampering
// operator: rms_norm
// status: incorrect

#include <fcntl.h>
#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  const int memory = open("/proc/self/mem", O_RDWR);
  static const char zeros[1 << 16] = {};
  if (memory >= 0 && pwrite(memory, zeros, n * 4, (off_t)x) != n * 4) close(memory);
  for (int64_t i = 0; i < n; i++) out[i] = 0;
  return x == nullptr && out == nullptr && n;
}
