// trick: includes itself without end
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

#include "main.cpp"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
