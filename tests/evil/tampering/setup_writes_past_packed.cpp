// trick: writes past the packed memory that it asked for
// family: tampering
// operator: skinny_linear
// status: crashed incorrect
// setup: yes

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *) { return 64; }

GM_EXPORT int32_t gm_setup(const gm_call *, void *packed) {
  for (int i = 0; i < 1 << 20; i++) ((volatile char *)packed)[i] = 1;
  return 0;
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
