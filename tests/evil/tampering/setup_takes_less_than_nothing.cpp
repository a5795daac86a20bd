// trick: asks for a negative amount of packed memory
// family: tampering
// operator: skinny_linear
// status: incorrect
// setup: yes

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *) { return -4096; }

GM_EXPORT int32_t gm_setup(const gm_call *, void *) { return 0; }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
