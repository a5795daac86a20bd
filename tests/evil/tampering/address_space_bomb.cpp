// trick: maps address space without end
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
  int64_t mapped = 0;
  while (mmap(nullptr, 1 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED) mapped++;
  out[0] = mapped;
  return x == nullptr && out == nullptr && n;
}
