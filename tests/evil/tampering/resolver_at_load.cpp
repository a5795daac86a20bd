// trick: runs in the resolver of an indirect function, before anything is linked
// family: tampering
// operator: rms_norm
// status: crashed

#include "gristmill_kernel.h"

extern "C" {
static int32_t work() { return 0; }

static int32_t (*choose())() {
  __builtin_trap();
  return work;
}
}

__attribute__((ifunc("choose"))) int32_t chosen();

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr ? chosen() : 0;
}
