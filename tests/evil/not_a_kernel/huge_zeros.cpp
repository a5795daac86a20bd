// trick: needs a terabyte of zeros when it is loaded
// family: not_a_kernel
// operator: rms_norm
// status: build_failed incorrect

#include "gristmill_kernel.h"

static char table[1ll << 40];

GM_EXPORT int32_t gm_run(const gm_call *call) {
  return table[call->inputs[0].shape[0]]++;
}
