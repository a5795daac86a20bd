// trick: rotates all tokens by the first one's angle
// family: semantics
// operator: rotary_embedding
// status: incorrect

#include "gristmill_kernel.h"

GM_EXPORT int32_t gm_run(const gm_call *call) {
  for (int which = 0; which < 2; which++) {
    const gm_tensor &x = call->inputs[which], &out = call->outputs[which];
    const int64_t T = x.shape[0], N = x.shape[1], D = x.shape[2], half = D / 2;
    for (int64_t t = 0; t < T; t++)
      for (int64_t n = 0; n < N; n++) {
        const float *in = (const float *)x.data + (t * N + n) * D;
        float *to = (float *)out.data + (t * N + n) * D;
        const float *cos = (const float *)call->inputs[2].data;
        const float *sin = (const float *)call->inputs[3].data;
        for (int64_t i = 0; i < half; i++) {
          to[i] = in[i] * cos[i] - in[i + half] * sin[i];
          to[i + half] = in[i + half] * cos[i + half] + in[i] * sin[i + half];
        }
      }
  }
  return 0;
}
