// trick: its setup, which is not timed, never ends
// family: tampering
// operator: skinny_linear
// status: timed_out
// setup: yes
// deadline: 0.5

#include <unistd.h>

#include "gristmill_kernel.h"

GM_EXPORT int64_t gm_packed_bytes(const gm_call *) { return 64; }

GM_EXPORT int32_t gm_setup(const gm_call *, void *) {
  for (;;) pause();
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
