// trick: changes rounding and the number of threads for itself, and puts both back: they are its own thread's
// family: style
// operator: rms_norm
// axes: tokens=3 hidden=512
// edges: yes

#include <cfenv>
#include <cmath>
#include <omp.h>

#include "gristmill_kernel.h"

namespace {

struct Settings {
  std::fenv_t arithmetic;
  int threads = omp_get_max_threads();
  Settings() {
    std::feholdexcept(&arithmetic);
    std::fesetround(FE_UPWARD);
    omp_set_num_threads(2);
  }
  ~Settings() {
    omp_set_num_threads(threads);
    std::fesetenv(&arithmetic);
  }
};

}  // namespace

GM_EXPORT int32_t gm_run(const gm_call *call) {
  const Settings own;
  const int64_t tokens = call->inputs[0].shape[0], hidden = call->inputs[0].shape[1];
  const float *weight = (const float *)call->inputs[1].data;
  for (int64_t t = 0; t < tokens; t++) {
    const float *x = (const float *)call->inputs[0].data + t * hidden;
    float *out = (float *)call->outputs[0].data + t * hidden;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t h = 0; h < hidden; h++) sum += x[h] * x[h];
    const float scale = 1 / std::sqrt(sum / hidden + (float)call->scalars[0]);
    for (int64_t h = 0; h < hidden; h++) out[h] = x[h] * scale * weight[h];
  }
  return 0;
}
