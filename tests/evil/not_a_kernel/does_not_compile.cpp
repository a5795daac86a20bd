// trick: ends in the middle
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  for (int64_t i = 0; i <