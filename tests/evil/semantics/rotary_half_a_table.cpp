// trick: reads half of the tables, because the other half is usually the same
// family: semantics
// operator: rotary_embedding
// status: incorrect
// edges: yes

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  for (int which = 0; which < 2; which++) {
    const gm_tensor &x = call->inputs[which], &out = call->outputs[which];
    const int64_t T = x.shape[0], N = x.shape[1], D = x.shape[2], half = D / 2;
    for (int64_t t = 0; t < T; t++)
      for (int64_t n = 0; n < N; n++) {
        const float *in = (const float *)x.data + (t * N + n) * D;
        float *to = (float *)out.data + (t * N + n) * D;
        const float *cos = (const float *)call->inputs[2].data + t * D;
        const float *sin = (const float *)call->inputs[3].data + t * D;
        for (int64_t i = 0; i < half; i++) {
          to[i] = in[i] * cos[i] - in[i + half] * sin[i];
          to[i + half] = in[i + half] * cos[i] + in[i] * sin[i];
        }
      }
  }
  return 0;
}
