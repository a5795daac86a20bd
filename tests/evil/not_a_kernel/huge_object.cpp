// trick: is an object of sixteen GiB
// family: not_a_kernel
// operator: rms_norm
// status: build_failed

#include "gristmill_kernel.h"

static char table[16ll << 30] = {1};

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return table[call->inputs[0].shape[0]] == 7;
}
