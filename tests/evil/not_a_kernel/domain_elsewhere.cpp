// trick: claims sizes that nobody asks for
// family: not_a_kernel
// operator: rms_norm
// status: rejected
// ranges: tokens=100000..200000

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
