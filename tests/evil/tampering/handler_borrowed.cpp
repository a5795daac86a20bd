// trick: ignores a signal while it works, and puts back what it found: between two threads that is what the other had set
// family: tampering
// operator: rms_norm
// status: incorrect
// axes: tokens=3 hidden=512

#include <cmath>
#include <csignal>

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  void (*found)(int) = std::signal(SIGUSR1, SIG_IGN);
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    float sum = 0;
    for (int64_t h = 0; h < hidden; h++) sum += x[h] * x[h];
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
  std::signal(SIGUSR1, found);
  return 0;
}
