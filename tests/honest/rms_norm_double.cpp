// trick: plain loops, the sum in double, one division per element
// family: style
// operator: rms_norm
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const gm_tensor &x = call->inputs[0], &weight = call->inputs[1], &out = call->outputs[0];
  const int64_t tokens = x.shape[0], hidden = x.shape[1];
  for (int64_t t = 0; t < tokens; t++) {
    const float *row = static_cast<const float *>(x.data) + t * hidden;
    double sum = 0;
    for (int64_t h = 0; h < hidden; h++) sum += double(row[h]) * double(row[h]);
    const double root = std::sqrt(sum / double(hidden) + call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++)
      static_cast<float *>(out.data)[t * hidden + h] = float(row[h] / root * static_cast<const float *>(weight.data)[h]);
  }
  return 0;
}
