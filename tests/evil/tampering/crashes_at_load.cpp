// trick: faults when it is loaded
// family: tampering
// operator: rms_norm
// status: crashed

#include "gristmill_kernel.h"

static const int answer = [] { return *(volatile int *)16; }();

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr && answer;
}
