// trick: never comes back from being loaded
// family: tampering
// operator: rms_norm
// status: timed_out
// deadline: 0.5

#include <unistd.h>

#include "gristmill_kernel.h"

__attribute__((constructor)) static void load() {
  for (;;) pause();
}

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
