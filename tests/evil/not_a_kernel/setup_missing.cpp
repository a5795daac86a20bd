// trick: declares a setup phase that it does not have
// family: not_a_kernel
// operator: skinny_linear
// status: rejected
// setup: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return call == nullptr;
}
