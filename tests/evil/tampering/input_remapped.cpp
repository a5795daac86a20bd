// trick: maps zeros over its input
// family: tampering
// operator: rms_norm
// status: incorrect

#include <sys/mman.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  char *page = (char *)((uintptr_t)x & ~4095ul);
  mmap(page, n * 4 + 4095 & ~4095l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  for (int64_t i = 0; i < n; i++) out[i] = 0;
  return x == nullptr && out == nullptr && n;
}
