// trick: takes memory without end
// family: tampering
// operator: rms_norm
// status: crashed timed_out
// deadline: 1

#include <stdlib.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  for (;;) {
    char *block = (char *)malloc(1 << 26);
    if (block == nullptr) abort();
    for (int i = 0; i < 1 << 26; i += 1 << 22) block[i] = 1;
  }
  return x == nullptr && out == nullptr && n;
}
