// trick: points its output to the input instead of writing it
// family: semantics
// operator: rms_norm
// status: incorrect cheated

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const_cast<gm_tensor *>(call->outputs)->data = call->inputs[0].data;
  return 0;
}
