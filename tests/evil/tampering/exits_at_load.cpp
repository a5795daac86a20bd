// trick: exits with success when it is loaded
// family: tampering
// operator: rms_norm
// status: crashed

#include <unistd.h>

#include "gristmill_kernel.h"

__attribute__((constructor)) static void load() { _exit(0); }

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
