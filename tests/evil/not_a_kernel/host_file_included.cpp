// trick: includes a file of the host, to see it in the messages of the compiler
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

#include "/etc/passwd"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
