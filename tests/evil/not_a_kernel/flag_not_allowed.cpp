// trick: asks the compiler to load a plugin
// family: not_a_kernel
// operator: rms_norm
// status: rejected
// flags: -fplugin=/tmp/plugin.so

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
