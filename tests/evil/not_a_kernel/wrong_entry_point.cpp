// trick: exports an entry point of another name
// family: not_a_kernel
// operator: rms_norm
// status: rejected

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_execute(const gm_call *call) { return call == nullptr; }
