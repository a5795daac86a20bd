// trick: a row of scratch from alloca, the sum of squares in strides of seven
// family: style
// operator: fused_add_rms_norm
// axes: tokens=3 hidden=2048
// edges: yes

#include <alloca.h>

#include <cmath>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  float *row = (float *)alloca(hidden * sizeof(float));
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t h = 0; h < hidden; h++)
      row[h] = ((const float *)call->inputs[0].data)[t * hidden + h] +
               ((const float *)call->inputs[1].data)[t * hidden + h];
    float sum = 0;
    for (int64_t start = 0; start < 7; start++)
      for (int64_t h = start; h < hidden; h += 7) sum += row[h] * row[h];
    const float root = std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) {
      ((float *)call->outputs[1].data)[t * hidden + h] = row[h];
      ((float *)call->outputs[0].data)[t * hidden + h] = row[h] / root * ((const float *)call->inputs[2].data)[h];
    }
  }
  return 0;
}
