// trick: denormal numbers flushed to zero while it works, the control word restored before the return
// family: style
// operator: rms_norm
// axes: tokens=4 hidden=384
// edges: yes

#include <cmath>

#include "gristmill_kernel.h"
#ifdef __SSE__
#include <xmmintrin.h>
#endif

GM_EXPORT int32_t gm_run(const gm_call *call) {
#ifdef __SSE__
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8040);
#endif
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
#ifdef __SSE__
  _mm_setcsr(control);
#endif
  return 0;
}
