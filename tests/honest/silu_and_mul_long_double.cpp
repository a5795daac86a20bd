// trick: eighty bits of precision throughout
// family: style
// operator: silu_and_mul
// axes: tokens=2 intermediate=200
// edges: yes

#include <math.h>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t count = call->inputs[0].shape[0] * call->inputs[0].shape[1];
  for (int64_t i = count - 1; i >= 0; i--) {
    const long double gate = ((const float *)call->inputs[0].data)[i];
    const long double up = ((const float *)call->inputs[1].data)[i];
    ((float *)call->outputs[0].data)[i] = (float)(gate * up / (1.0L + expl(-gate)));
  }
  return 0;
}
