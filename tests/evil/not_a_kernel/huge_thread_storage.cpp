// trick: needs a GiB per thread
// family: not_a_kernel
// operator: rms_norm
// status: incorrect crashed

#include "gristmill_kernel.h"

static thread_local char table[1 << 30];

GM_EXPORT int32_t gm_run(const gm_call *call) {
  for (int i = 0; i < 1 << 30; i += 1 << 20) ((volatile char *)table)[i] = 1;
  return call == nullptr;
}
