// trick: hands out memory that was freed, where the last answer may still stand
// family: semantics
// operator: rms_norm
// status: incorrect

#include <stdlib.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &rows = call->outputs[0];
  const int64_t n = rows.shape[0] * rows.shape[1];
  const float *x = (const float *)call->inputs[0].data;
  float *out = (float *)rows.data;
  float *stale = (float *)malloc(n * 4);
  __builtin_memcpy(out, stale, n * 4);
  free(stale);
  return x == nullptr;
}
