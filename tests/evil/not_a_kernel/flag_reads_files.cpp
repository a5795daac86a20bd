// trick: asks the compiler to read its flags from a file
// family: not_a_kernel
// operator: rms_norm
// status: rejected
// flags: @/etc/passwd

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
